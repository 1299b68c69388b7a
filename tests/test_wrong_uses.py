"""Wrong uses of every command: each ends in one line.

The list is made from the commands' own options: each is given values of the wrong kind, with a model that is not there.
`make test` tries one value, `make test-slow` all.
"""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from voidpad import models
from voidpad.commands import cli

MISSING = "/no/such/model"
# By command: arguments that would work if the model, or the file, were there.
BASES = {
    "generate": f"hi --model {MISSING}",
    "chat": f"--model {MISSING}",
    "plans": "",
    "train": "recipe.toml",
    "data prepare": f"out.safetensors --from chats.jsonl --model {MISSING}",
    "data stats": "none.safetensors",
    "data show": "none.safetensors",
    "eval": f"--out run --tasks tiny_steps --model {MISSING}",
    "sweep": "sweep.toml --out sweep",
    "report": "folder",
    "recipes": "--path none",
    "calibrate": f"--model {MISSING} --file prompts.txt",
    "merge": f"{MISSING} --out merged",
    "export": f"{MISSING} --out released",
    "join": "folder --out joined",
    "view": "none.jsonl",
    "analyze eos-prior": f"--model {MISSING}",
    "analyze overflow": f"--model {MISSING}",
    "analyze attention": f"--model {MISSING}",
    "demo": "--device nonsense",
    "bench": f"--model {MISSING} --file prompts.txt",
    "serve": MISSING,
}
TEXTS = {
    "recipe.toml": '[model]\nname = "/no/such/model"\n[data]\npath = "none.safetensors"\n[padding]\npolicy = "void"\n'
    '[run]\noutput = "out"\nsteps = 2\n',
    "sweep.toml": 'title = "t"\ntasks = ["tiny_steps"]\n[[group]]\nmodel = "/no/such/model"\nplan = "void"\n',
    "chats.jsonl": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    "prompts.txt": "one\n",
    "empty": "",
    "broken": '{"a": [1,',
}
VALUES = (
    "-3", "x", "0", "1e99", "nan", "1.5", "", "none", "folder", "empty", "binary", "broken", "latin", "\x1b[31mred",
    "9" * 5000, "void:no_such_object", "../..", "/dev/null", "a\nb",
)  # fmt: skip
LONGEST = cli.LINE + 100  # characters


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(name, command) of a command, or of the commands of a group."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield " ".join(path), command
    for name, child in (inner or {}).items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaf for name in cli.COMMANDS for leaf in leaves(cli.command_named(name), (name,)))


def arguments(name: str, option: str, value: str) -> list[str]:
    """The command's usual arguments, with `option` given this value instead of its own."""
    usual = shlex.split(BASES[name])
    if not option.startswith("--"):
        given = usual if not usual or usual[0].startswith("--") else usual[1:]
        return [*name.split(), value, *given]
    if option in usual:
        at = usual.index(option)
        del usual[at : at + 2]
    return [*name.split(), *usual, f"{option}={value}"]


@pytest.fixture
def place(monkeypatch, tmp_path):
    """A folder with the files that the arguments name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    return tmp_path


def last_line(ran: Any) -> str:
    return (ran.err.splitlines() or [""])[-1]


def tried(voidpad: Any, name: str, values: tuple[str, ...]) -> dict[str, str]:
    """By wrong use that does not end in one line of ours, what it printed."""
    faults = {}
    for one in COMMANDS[name].params:
        if getattr(one, "is_flag", False) or one.secondary_opts:
            continue
        for value in values:
            ran = voidpad("", *arguments(name, one.opts[0], value))
            line = last_line(ran)
            ours = line.startswith("voidpad: ") and line.isprintable() and len(line) <= LONGEST
            bare = "--debug shows where" in ran.err or "Traceback" in ran.err
            if ran.status and (ran.status not in (1, 2) or not ours or bare):
                faults[f"{one.opts[0]}={value[:40]!r}"] = ran.err[-300:]
    return faults


def test_every_command_is_tried():
    assert BASES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", BASES)
def test_a_wrong_option_is_one_line(voidpad, place, name):
    assert tried(voidpad, name, VALUES[:1]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_every_wrong_option_is_one_line(voidpad, place, name):
    assert tried(voidpad, name, VALUES) == {}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("chat --set window=8", "window"),
        ("serve --plan original --set window=8", "window"),
        ("serve --threshold 3", "threshold"),
        ("generate hi --speed quick", "quick"),
        ("serve --speed fast --cache dual", "cache=dual"),
        ("eval --tasks tiny_steps --out run --speed fastest --plan daedal", "daedal"),
        ("analyze overflow hi --block 0", "block"),
        ("analyze overflow --tasks none", "none"),
        ("eval --tasks tiny_complete --out run", "--allow-code-execution"),
        ("eval --tasks tiny_turns --out run", "tiny_turns"),
    ],
)
def test_what_cannot_run_is_refused_before_weights_are_read(voidpad, place, monkeypatch, line, named):
    def too_late(*_, **__):
        raise AssertionError("weights were read")

    monkeypatch.setattr(models.Checkpoint, "load_weights", too_late)
    ran = voidpad(line)
    assert ran.status in (1, 2), ran.err
    assert named in last_line(ran)


def test_a_choice_that_is_none_is_said_without_words_of_a_library(voidpad):
    assert last_line(voidpad("recipes nope")).startswith(
        "voidpad: Invalid value for 'kind': 'nope' is not one of"
    )


def test_no_error_writes_to_the_terminal_or_repeats_a_long_value(voidpad, place):
    """File names and values can hold escape sequences."""
    for words in (["generate", "hi", "--model", "\x1b]0;owned\x07"], ["view", "\x1b[2J"], ["\x1b[31mx"]):
        assert last_line(voidpad("", *words)).isprintable()
    assert len(last_line(voidpad("generate hi --dtype", "x" * 100_000))) <= LONGEST
