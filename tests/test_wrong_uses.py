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
    "chat": ("--model", MISSING),
    "plans": NONE,
    "train": ("recipe.toml",),
    "data prepare": ("out.safetensors", "--from", "chats.jsonl", "--model", MISSING),
    "data stats": ("none.safetensors",),
    "data show": ("none.safetensors",),
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
    "--out", "--save-trace", "--page", "--regex", "--choice", "output", "--set", "--only", "model", "--report",
    "--init", "folders", "traces", "file", "--fill",
}  # fmt: skip
# Whole numbers that are right though they are negative, and a folder that the tasks look into after the card was read.
ACCEPTED = {
    ("data prepare", "--seed"), ("analyze eos-prior", "--seed"), ("analyze eos-prior", "--data"), ("eval", "--data"),
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
    ("line", "named"),
    [
        ("generate hi --set window=8", "window"),
        ("generate hi --set report_delta=true", "report_delta"),
        ("generate hi --set ban=voyd", "voyd"),
        ("chat --set window=8", "window"),
        ("serve --plan original --set window=8", "window"),
        ("serve --threshold 3", "threshold"),
    ],
)
def test_a_wrong_plan_is_refused_before_weights_are_read(voidpad, monkeypatch, line, named):
    def too_late(*_, **__):
        raise AssertionError("weights were read")

    monkeypatch.setattr(models.Checkpoint, "load_weights", too_late)
    ended = voidpad(line.split())
    assert ended.status in (1, 2), ended.err
    assert named in ended.last


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
