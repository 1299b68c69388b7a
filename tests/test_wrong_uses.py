"""Wrong uses of every command: each ends in one line, and a wrong option is refused before a model is looked for.

The list is made from the commands' own options: each is given values of the wrong kind, with a model that is not
there. A refusal that names the missing model came too late. `make test` tries two values, `make test-slow` all.
"""

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from voidpad import models
from voidpad.commands import cli

MISSING = "/no/such/model"
NONE: tuple[str, ...] = ()
# By command: arguments that would work if the model, or the file, were there.
BASES: dict[str, tuple[str, ...]] = {
    "generate": ("hi", "--model", MISSING),
    "plans": NONE,
    "train": ("recipe.toml",),
    "data prepare": ("out.safetensors", "--from", "chats.jsonl", "--model", MISSING),
    "data stats": ("none.safetensors",),
    "eval": ("--out", "run", "--tasks", "tiny_steps", "--model", MISSING),
    "sweep": ("sweep.toml", "--out", "sweep"),
    "report": ("folder",),
    "recipes": ("--path", "none"),
    "calibrate": ("--model", MISSING, "--file", "prompts.txt"),
    "merge": (MISSING, "--out", "merged"),
    "export": (MISSING, "--out", "released"),
    "join": ("folder", "--out", "joined"),
    "view": ("none.jsonl",),
    "analyze eos-prior": ("--model", MISSING),
    "analyze overflow": ("--model", MISSING),
    "analyze attention": ("--model", MISSING),
    "analyze theory": ("--model", MISSING),
    "demo": ("--device", "nonsense"),
    "bench": ("--model", MISSING, "--file", "prompts.txt"),
    "serve": (MISSING,),
}
TEXTS = {
    "recipe.toml": '[model]\nname = "/no/such/model"\n[data]\npath = "none.safetensors"\n[padding]\npolicy = "void"\n'
    '[run]\noutput = "out"\nsteps = 2\n',
    "sweep.toml": 'title = "t"\ntasks = ["tiny_steps"]\n[[group]]\nmodel = "/no/such/model"\nplan = "void"\n',
    "chats.jsonl": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    "roles.jsonl": '{"prompt": "a"}\n{"messages": [{"role": "martian", "content": "a"}]}\n',
    "prompts.txt": "one\n",
    "empty": "",
    "broken": '{"a": [1,',
}
FIRST = ("x", "-3")
VALUES = (
    *FIRST, "0", "1e99", "nan", "1.5", "", "none", "folder", "empty", "binary", "broken", "latin", "\x1b[31mred",
    "9" * 5000, "void:no_such_object", "../..", "/dev/null", "a\nb",
)  # fmt: skip
# Options whose value no check but the model, its tokenizer, a server or a new file can refuse.
FREE = {
    "prompt", "--model", "--like", "--adapter", "--system", "--name", "--allowed-host", "--host", "--trace", "--csv",
    "--out", "--save-trace", "output", "--set", "--only", "model", "--report", "--init", "folders", "traces", "file",
}  # fmt: skip
# Whole numbers that are right though they are negative, and a folder that the tasks look into after the card was read.
ACCEPTED = {
    ("data prepare", "--seed"), ("eval", "--fewshot-seed"), ("analyze eos-prior", "--seed"), ("eval", "--data"),
}  # fmt: skip
LINE = 2100  # characters


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(name, command) of a command, or of the commands of a group."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield " ".join(path), command
    for name, child in (inner or {}).items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaf for name in cli.COMMANDS for leaf in leaves(cli.command_named(name), (name,)))


def takes_value(one: Any) -> bool:
    return not (getattr(one, "is_flag", False) or one.secondary_opts)


def is_plan_field(one: Any) -> bool:
    return bool(getattr(one, "rich_help_panel", None))


def arguments(name: str, option: str, value: str) -> list[str]:
    """The command's usual arguments, with `option` given this value instead of its own."""
    usual = list(BASES[name])
    if not option.startswith("--"):
        given = usual if not usual or usual[0].startswith("--") else usual[1:]
        return [*name.split(), value, *given]
    if option in usual:
        at = usual.index(option)
        del usual[at : at + 2]
    return [*name.split(), *usual, f"{option}={value}"]


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return (self.err.splitlines() or [""])[-1]


@pytest.fixture
def voidpad(monkeypatch, capsys, tmp_path):
    """`voidpad ARGUMENTS` in this process, in a folder with the files that the arguments name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    (tmp_path / "folder").mkdir()

    def run(words: list[str]) -> Ended:
        monkeypatch.setattr(sys, "argv", ["voidpad", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    return run


def fault_of(ended: Ended, name: str, option: str, value: str) -> str:
    """What is wrong with how a wrong use ended; empty if nothing is."""
    if ended.status == 0:
        return "" if option in FREE or value in ("", "0", "none", "1.5") else "was accepted"
    if ended.status not in (1, 2):
        return f"status {ended.status}"
    if not ended.last.startswith("voidpad: ") or not ended.last.isprintable() or len(ended.last) > LINE:
        return "does not end in one line of ours"
    if "--debug shows where" in ended.err or "Traceback" in ended.err:
        return "a bare error of Python"
    numeric = value in FIRST and (name, option) not in ACCEPTED
    if MISSING in ended.last and MISSING in BASES[name] and numeric and option not in FREE:
        return "refused only after the model was looked for"
    return ""


def tried(voidpad: Any, name: str, values: tuple[str, ...], *, fields: bool) -> dict[str, str]:
    """By wrong use, its fault."""
    faults = {}
    for one in COMMANDS[name].params:
        if not takes_value(one) or (is_plan_field(one) and not fields):
            continue
        for value in values:
            ended = voidpad(arguments(name, one.opts[0], value))
            if fault := fault_of(ended, name, one.opts[0], value):
                faults[f"{one.opts[0]}={value[:40]!r}"] = f"{fault}: {ended.err[-300:]}"
    return faults


def test_every_command_is_tried():
    assert set(BASES) == set(COMMANDS)


@pytest.mark.parametrize("name", BASES)
def test_a_wrong_option_is_one_line_before_the_model(voidpad, name):
    assert tried(voidpad, name, FIRST[1:], fields=name == "generate") == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_every_wrong_option_is_one_line(voidpad, name):
    assert tried(voidpad, name, VALUES, fields=True) == {}


# Combinations, and files that hold something else


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("generat", "No such command"),
        ("generate hi --no-such-option", "No such option"),
        ("generate hi --model {m} --report-delta", "--report-delta compares an approximation"),
        ("generate --file folder --model {m}", "folder: Is a directory"),
        ("generate --file empty --model {m}", "empty: the file is empty"),
        ("generate --file latin --model {m}", "latin, line 1: not UTF-8"),
        ("generate --messages broken --model {m}", "broken: not JSON"),
        ("generate --model {m}", "no prompt"),
        ("generate hi --model {m} --roles void=x", "--roles 'void=x'"),
        ("generate hi --model {m} --trace folder", "--trace folder: is a folder"),
        ("generate hi --model {m} --trace /dev/null", "no plain file"),
        ("generate hi --model {m} --trace none/t.jsonl", "there is no folder none"),
        ("generate hi --model {m} --plan no_such_module:plan", "cannot import no_such_module"),
        ("generate hi --model {m} --ban voyd", "role 'voyd' is unknown; use one of"),
        ("generate --file prompts.txt --trace prompts.txt --model {m}", "prompts.txt: is read too"),
        ("generate --messages broken --trace ./broken --model {m}", "broken: is read too"),
        (
            "generate hi --adapter none",
            "tiny-void: is an adapter itself, of tiny-instruct; for another adapter",
        ),
        ("generate hi --model tiny-instruct --adapter folder", "folder/adapter_config.json: no such file"),
        ("generate --file chats.jsonl --model {m}", "chats.jsonl, line 1: messages[1] is an assistant turn"),
        (
            "generate --file roles.jsonl --model {m}",
            "roles.jsonl, line 2: messages[0]: role 'martian' is unknown",
        ),
        ("train", "RECIPE is missing"),
        ("train recipe.toml --max-seconds 0", "--max-seconds"),
        (
            "train --init new.toml --model tiny-void",
            "tiny-void: is an adapter of tiny-instruct; fine-tune that",
        ),
        (
            "train recipe.toml --set model.name=tiny-instruct --set data.path=chats.jsonl",
            "not a prepared data file",
        ),
        ("train broken", "not valid TOML"),
        ("train folder", "recipe folder"),
        ("train recipe.toml --set run", "--set 'run'"),
        ("train recipe.toml --set run.no_such_field=1", "run.no_such_field: no such setting"),
        ("train --init recipe.toml", "recipe.toml"),
        ("data prepare out.safetensors --from none.jsonl --model {m}", "none.jsonl: no such file"),
        ("data prepare out.safetensors --from chats.txt --model {m}", "source 'chats.txt'"),
        ("data prepare out.safetensors --from chats.jsonl --model {m} --map x", "x"),
        ("data prepare chats.jsonl --from chats.jsonl --model {m}", "chats.jsonl: is read too"),
        ("data prepare out.txt --from chats.jsonl --model {m}", "name it out.txt.safetensors"),
        ("data stats chats.jsonl", "make one of it with `voidpad data prepare`"),
        ("data stats binary", "binary: "),
        ("data stats folder", "folder: "),
        ("eval --out run --tasks tiny_steps,tiny_steps --model {m}", "names one twice"),
        ("eval --out run --tasks gsm9k --model {m}", "task 'gsm9k' is unknown"),
        ("eval --out run --model {m}", "tasks: none given"),
        ("eval --out run --tasks tiny_steps --model {m} --shard 4/4", "the first number must lie in 0..3"),
        ("eval --out run --tasks tiny_steps --model {m} --merge --quantize 8bit", "exclude each other"),
        ("eval --out run --tasks tiny_steps --model {m} --dtype int3", "dtype 'int3' is unknown"),
        ("eval --out empty --tasks tiny_steps --model {m}", "--out empty: is a file"),
        ("eval --out folder --stage answer", "config.json: missing; run the evaluation, or its first stage"),
        ("eval --out folder --stage judge --model {m}", "--model: --stage judge takes it from"),
        ("sweep broken --out sweep", "not TOML"),
        ("sweep sweep.toml --out sweep --shards 2", "needs a cluster"),
        ("sweep sweep.toml --out sweep --ray --stage answer", "on this machine only"),
        ("sweep sweep.toml --out sweep --device gpu", "device 'gpu' is unknown"),
        ("report none", "none: no run here"),
        ("report folder --published broken", "published broken: not TOML"),
        ("recipes nonsense", "nonsense"),
        ("calibrate --model {m} --file prompts.txt --canvas 60", "must be multiples of block"),
        ("calibrate --model {m} --file none", "none: No such file"),
        ("calibrate --model {m} --file prompts.txt --plot curve.doc", "a picture's name ends in"),
        ("merge {m} --out merged --dtype int3", "dtype 'int3' is unknown"),
        ("view broken", "trace broken, line 1: not JSON"),
        ("view folder", "trace folder: cannot be read"),
        ("analyze overflow --model {m} --blocks 8,x", "blocks='8,x'"),
        ("analyze overflow --trace none.jsonl", "trace none.jsonl: cannot be read"),
        ("analyze overflow --model {m} --file broken", "broken, line 1: not JSON"),
        ("analyze eos-prior --model {m} --data none.jsonl", "--data none.jsonl: there is no such file"),
        ("analyze theory --model {m} --padding confetti", "confetti"),
        ("analyze theory --lengths 3:x", "'3:x' is not LENGTH"),
        ("bench --model {m} --file empty", "empty: the file is empty"),
        (
            "bench --model {m}",
            "/no/such/model: is no built-in model, so it brings no problems; give prompts with --file",
        ),
        ("serve {m} --model other", "/no/such/model and --model other name two models; give one"),
        ("serve {m} --host 0.0.0.0", "no API keys are set"),
        ("serve --model {m}", "/no/such/model: no such folder"),
        ("serve {m} --api-keys none", "api-keys none: cannot be read"),
        ("serve {m} --max-body much", "max-body='much' is no size"),
        ("serve {m} --plan a:b", "cannot be served"),
    ],
)
def test_a_wrong_use_says_what_to_change(voidpad, line, message):
    ended = voidpad(line.format(m=MISSING).split())
    assert ended.status in (1, 2)
    assert message in ended.last
    assert ended.last.startswith("voidpad: ")
    assert "--debug shows where" not in ended.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("generate hi --window 8", "plan 'void' has no field window; plans that have it: void-expansion"),
        ("generate hi --block 7 --canvas 32", "canvas=32 is not a multiple of block=7"),
        ("generate hi --plan daedal --speed fast", "speed=fast replaces the commit rule"),
        ("serve --plan original --window 8", "plan 'original' has no field window"),
        ("serve --threshold 3", "threshold=3.0 must lie in [0, 1]"),
        ("serve --plan void --canvas 30 --block 16", "canvas=30 is not a multiple of block=16"),
    ],
)
def test_a_wrong_plan_is_refused_before_weights_are_read(voidpad, monkeypatch, line, message):
    def too_late(*given, **named):
        raise AssertionError("weights were asked for")

    monkeypatch.setattr(models, "load", too_late)
    ended = voidpad(line.split())
    assert message in ended.last
    assert ended.last.startswith("voidpad: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission_are_named(voidpad, tmp_path):
    (tmp_path / "prompts.txt").chmod(0)
    assert "prompts.txt: Permission denied" in voidpad(["generate", "--file", "prompts.txt"]).last
    (tmp_path / "folder").chmod(0o500)
    for words in (
        ["generate", "hi", "--trace", "folder/t"],
        ["eval", "--out", "folder", "--tasks", "tiny_steps"],
    ):
        assert "may not be written" in voidpad(words).last


def test_no_error_writes_to_the_terminal(voidpad):
    """File names and values can hold escape sequences."""
    for words in (["generate", "hi", "--model", "\x1b]0;owned\x07"], ["view", "\x1b[2J"], ["\x1b[31mx"]):
        assert voidpad(words).last.isprintable()


def test_a_long_value_is_not_repeated_whole(voidpad):
    assert len(voidpad(["generate", "hi", "--dtype", "x" * 100_000]).last) < LINE
