"""Starting up and ending: what a command imports, what it sets in its process, and what is left when it ends."""

import inspect
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from voidpad.commands import cli
from voidpad.engine.host import WAITING, threads_for
from voidpad.errors import install_command
from voidpad.models import random_model

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "peft",
    "pydantic",
    "matplotlib",
    "bitsandbytes",
    "huggingface_hub",
)


def python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """`code` in a fresh interpreter, which then runs `voidpad ARGUMENTS` if there are any."""
    run = "\nfrom voidpad.__main__ import main\nmain()" if arguments else ""
    command = [sys.executable, "-c", f"import sys\n{code}{run}", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, text=True, timeout=300, cwd=ROOT, **options)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_help_imports_nothing_heavy(arguments):
    shown = f"import atexit\natexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules]))"
    ran = python(shown, *arguments)
    assert ran.stdout.splitlines()[-1] == "[]", ran.stderr
    assert (ran.returncode, ran.stderr) == (0, "")
    assert arguments == ("--help",) or ran.stdout.startswith(f"voidpad {metadata.version('voidpad')}\n")


def test_every_command_is_listed_and_has_help_of_its_own(voidpad):
    words = set(voidpad("--help").out.split())
    for name, (_, about) in cli.COMMANDS.items():
        assert {name, *about.split()[:3]} <= words
        assert inspect.cleandoc(cli.command_named(name).help)


@pytest.mark.parametrize(
    ("line", "wanted"), [("voidpad gen", "generate"), ("voidpad generate --can", "--canvas")]
)
def test_the_shell_completes_commands_and_options(line, wanted):
    words = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
        "_VOIDPAD_COMPLETE": "complete_bash",
    }
    ran = python("", "", env={**os.environ, **words})
    assert wanted in ran.stdout.split(), ran.stderr


# What Python has on Unix alone. Windows has no test machine here: blocking these modules stands for it.
WITHOUT_UNIX = """
class Windows:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Windows())
"""


def test_the_package_and_its_commands_are_imported_without_unix_modules():
    """Of what torch and transformers import nothing is said: here they take their Unix road."""
    modules = {f"voidpad.commands.{target.partition(':')[0]}" for target, _ in cli.COMMANDS.values()}
    ran = python(WITHOUT_UNIX + "".join(f"\nimport {module}" for module in sorted(modules)), "recipes")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "tiny-demo" in ran.stdout
    assert "No module named 'fcntl'" in python(WITHOUT_UNIX + "\nimport fcntl").stderr


# Endings

INTERRUPTED = """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""
SWALLOWED = """
import builtins, os, signal, sys
real = builtins.__import__
def importing(name, *rest):
    if name == "voidpad.training" or name.startswith("transformers.utils"):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10**6): pass
        except BaseException:
            pass
    return real(name, *rest)
builtins.__import__ = importing
"""


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (INTERRUPTED.format(name="typer"), "generate hi"),
        (INTERRUPTED.format(name="voidpad.commands.generate"), "generate hi"),
        (INTERRUPTED.format(name="numpy"), "generate hi"),
        (SWALLOWED, "train none.toml"),  # some packages catch whatever goes wrong in an optional import
    ],
)
def test_an_interrupt_while_modules_load_is_one_line(code, command):
    ran = python(code, *command.split())
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "voidpad: interrupted\n")


@pytest.mark.parametrize("command", ["--help", "recipes"])
def test_a_reader_that_has_gone_is_no_error(command):
    """As in `voidpad --help | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        ran = python("", command, stdout=gone)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_end_of_a_command_loses_nothing(tmp_path):
    """The process ends without Python's last collection: files are written, threads and child processes awaited."""
    code = f"""
import atexit, multiprocessing, threading, time
from voidpad.commands import cli

kept = open({str(tmp_path / "buffered")!r}, "w")
kept.write("whole")

def later(name):
    time.sleep(0.5)
    open(name, "w").write("done")

def run(arguments):
    threading.Thread(target=later, args=[{str(tmp_path / "thread")!r}]).start()
    multiprocessing.get_context("fork").Process(target=later, args=[{str(tmp_path / "child")!r}]).start()
    print("the end", end="")

atexit.register(lambda: open({str(tmp_path / "exit")!r}, "w").write("done"))
cli.app = lambda *_, **__: run([])
"""
    ran = python(code, "plans")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "the end", "")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "buffered": "whole",
        "thread": "done",
        "child": "done",
        "exit": "done",
    }


# Extras


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        ("demo", "lm_eval.api.model", "eval"),
        ("serve", "fastapi", "serve"),
        ("data", "datasets", "train"),  # several extras bring it: the one for the command is named
        ("eval", "datasets", "eval"),
        ("generate", "nope", None),  # a module of nobody's is an error like others
    ],
)
def test_a_missing_extra_names_its_install(monkeypatch, command, module, extra):
    monkeypatch.setattr(sys, "argv", ["voidpad", command])
    message = cli.message_of(ModuleNotFoundError(f"No module named {module!r}", name=module), False)
    if extra is None:
        assert message == f"ModuleNotFoundError: No module named {module!r} (--debug shows where)"
    else:
        assert message == f"{module.split('.')[0]} is not installed; {install_command(extra)}."


@pytest.mark.slow
def test_plain_weights_import_no_bitsandbytes_and_quantized_ones_still_can():
    pytest.importorskip("bitsandbytes")
    code = """
import json, voidpad
model = voidpad.load("tiny-void")
seen = ["bitsandbytes" in sys.modules, type(model.net).__name__]
from peft.tuners import lora
print(json.dumps([*seen, lora.Linear4bit.__name__, lora.Linear8bitLt.__name__]))
"""
    ran = python(code)
    assert json.loads(ran.stdout) == [False, "PeftModel", "Linear4bit", "Linear8bitLt"], ran.stderr


# Threads


@pytest.fixture
def threads(monkeypatch):
    """Two torch threads, and no word from the user about their number."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("parameters", "tokens", "used"),
    [(2_800_000, 256, 1), (2_800_000, 8192, 2), (8_000_000_000, 256, 2), (0, 1, 2)],
)
def test_threads_follow_the_work_of_a_pass(threads, monkeypatch, parameters, tokens, used):
    with threads_for(parameters * tokens):
        assert torch.get_num_threads() == used
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # the user's own number stays
    with threads_for(parameters * tokens):
        assert torch.get_num_threads() == 2


def test_an_engine_of_a_model_computes_with_the_threads_that_its_pass_is_worth(threads):
    model, seen = random_model("llada", vocab=32, hidden=16, layers=1), []
    hook = model.net.model.embed_tokens.register_forward_pre_hook(
        lambda *_: seen.append(torch.get_num_threads())
    )
    model.generate("hi", canvas=4, block=4, raw=True)
    hook.remove()
    assert set(seen) == {1}


def test_the_process_waits_passively_and_is_prepared_before_torch_is_there():
    code = """
import os, voidpad
from voidpad.commands import cli
cli.prepare_process = lambda: print(*map(os.environ.get, ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")), "torch" in sys.modules)
"""
    left = {name: value for name, value in os.environ.items() if name not in WAITING}
    ran = python(code, "--version", env=left | {"GOMP_SPINCOUNT": "17"})  # the user's own value stays
    assert ran.stdout.startswith(f"17 {WAITING['KMP_BLOCKTIME']} False\n")
