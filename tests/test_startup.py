"""Starting up: what a command imports, what it sets in its process, and how it ends when something is missing."""

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
from voidpad.engine.host import WAITING, threads_for, wait_passively
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
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, **options)


AT_EXIT = f"import atexit\natexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules]))"


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_help_imports_nothing_heavy(arguments):
    ran = python(AT_EXIT, *arguments)
    assert ran.stdout.splitlines()[-1] == "[]", ran.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_line_of_a_command_is_its_own(name):
    text = cli.help_of(name)
    assert text
    assert inspect.cleandoc(cli.command_named(name).help) == text


def test_every_command_is_listed_with_its_first_sentence(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["voidpad", "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    words = set(capsys.readouterr().out.split())
    for name in cli.COMMANDS:
        assert {name, *cli.help_of(name).split()[:3]} <= words


def test_the_version_is_the_packages():
    ran = python("", "--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"voidpad {metadata.version('voidpad')}\n", "")


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


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("recipes",)])
def test_commands_that_need_no_unix_start_without_its_modules(arguments):
    ran = python(WITHOUT_UNIX, *arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()


def test_the_package_and_its_commands_are_imported_without_unix_modules():
    """Of what torch and transformers import nothing is said: here they take their Unix road."""
    targets = {target.partition(":")[0] for target in cli.COMMANDS.values()} | {"voidpad"}
    ran = python(WITHOUT_UNIX + "".join(f"\nimport {module}" for module in sorted(targets)))
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = python(WITHOUT_UNIX + "\nimport fcntl")
    assert "No module named 'fcntl'" in ran.stderr


# ---------------------------------------------------------------------------------------------------- endings
INTERRUPTED = """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("module", ["typer", "voidpad.commands.generate", "torch", "numpy"])
def test_an_interrupt_while_modules_load_is_one_line(module):
    ran = python(INTERRUPTED.format(name=module), "generate", "hi")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "voidpad: interrupted\n")


@pytest.mark.parametrize("arguments", [("--help",), ("plans", "void"), ("--version",)])
def test_a_reader_that_has_gone_is_no_error(arguments):
    """As in `voidpad --help | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        ran = subprocess.run(
            [sys.executable, "-m", "voidpad", *arguments], stdout=gone, stderr=subprocess.PIPE, timeout=300
        )
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("lm_eval", "eval"),
        ("lm_eval.api.model", "eval"),
        ("math_verify", "eval"),
        ("ray", "ray"),
        ("bitsandbytes", "quantize"),
        ("tensorboard", "train"),
    ],
)
def test_a_missing_extra_names_its_install(module, extra):
    message = cli.message_of(ModuleNotFoundError(f"No module named {module!r}", name=module), False)
    assert message == f"{module.split('.')[0]} is not installed; pip install 'voidpad[{extra}]'."


@pytest.mark.parametrize(("command", "extra"), [("train", "train"), ("data", "train"), ("eval", "eval")])
def test_a_package_of_several_extras_is_named_by_the_commands_own(monkeypatch, command, extra):
    monkeypatch.setattr(sys, "argv", ["voidpad", command])
    message = cli.message_of(ModuleNotFoundError("No module named 'datasets'", name="datasets"), False)
    assert f"voidpad[{extra}]" in message


def test_an_interrupt_that_an_import_swallows_ends_the_command(tmp_path):
    """As some packages do: they catch everything that goes wrong while they look for an optional one."""
    swallows = """
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
    ran = python(swallows, "train", str(tmp_path / "none.toml"))
    assert (ran.returncode, ran.stderr) == (130, "voidpad: interrupted\n")


def test_a_missing_module_of_nobodys_is_an_error_like_others():
    message = cli.message_of(ModuleNotFoundError("No module named 'nope'", name="nope"), False)
    assert message == "ModuleNotFoundError: No module named 'nope' (--debug shows where)"


def test_eval_without_its_extra_says_what_to_install(tmp_path):
    missing = "sys.modules['lm_eval'] = None"
    ran = python(missing, "eval", "--model", "tiny-void", "--tasks", "gsm8k", "--out", str(tmp_path / "run"))
    assert ran.returncode == 1
    assert ran.stderr.strip() == "voidpad: lm_eval is not installed; pip install 'voidpad[eval]'."


# ------------------------------------------------------------------------------------------- bitsandbytes
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


# ------------------------------------------------------------------------------------------------ threads
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
    [(2_800_000, 256, 1), (2_800_000, 8192, 2), (8_000_000_000, 256, 2), (10, 1, 1), (0, 1, 2)],
)
def test_threads_follow_the_work_of_a_pass(threads, parameters, tokens, used):
    with threads_for(parameters * tokens):
        assert torch.get_num_threads() == used
    assert torch.get_num_threads() == 2


def test_the_users_number_of_threads_stays(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with threads_for(10):
        assert torch.get_num_threads() == 2


def test_an_engine_of_a_model_computes_with_the_threads_that_its_pass_is_worth(threads):
    model, seen = random_model("llada", vocab=32, hidden=16, layers=1), []
    hook = model.net.model.embed_tokens.register_forward_pre_hook(
        lambda *_: seen.append(torch.get_num_threads())
    )
    model.generate("hi", canvas=4, block=4, raw=True)
    hook.remove()
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


def test_waiting_is_passive_unless_the_user_says_otherwise(monkeypatch):
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "17")
    wait_passively()
    assert {name: os.environ[name] for name in WAITING} == {**WAITING, "GOMP_SPINCOUNT": "17"}


def test_whoever_imports_voidpad_waits_passively():
    code = "import voidpad, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", "False"]


def test_the_process_is_prepared_before_torch_is_there():
    code = """
from voidpad.commands import cli
def seen(): print("torch" in sys.modules)
cli.prepare_process = seen
"""
    assert python(code, "--version").stdout.splitlines()[0] == "False"
