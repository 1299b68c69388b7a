"""Prompts from arguments, files and standard input, and examples of what the built-in model can be asked."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from random import Random
from typing import Any

from voidpad.commands.ui import err, note
from voidpad.errors import ConfigError, DataError
from voidpad.files import readable

Prompt = str | list[dict[str, Any]]  # text, or the turns of a conversation, which encoding checks


def gather(
    arguments: list[str] | None = None,
    *,
    file: Path | None = None,
    messages: Path | None = None,
    examples: bool = False,
) -> list[Prompt]:
    """All prompts asked for; standard input where nothing is named.

    Without any, a person at a terminal is shown `examples`: what the built-in model can be asked.
    """
    found: list[Prompt] = [*(arguments or [])]
    if file is not None:
        found += [prompt for prompt, _ in from_lines(file)]
    if messages is not None:
        turns = _json(read(messages), str(messages))
        turns = turns.get("messages") if isinstance(turns, dict) else turns
        if not isinstance(turns, list):
            raise DataError(f'{messages}: expected a list of {{"role": ..., "content": ...}}.')
        found.append(turns)
    terminal = sys.stdin is None or sys.stdin.isatty()
    if not found and not terminal:
        text = read(Path("-")).strip()
        found += [text] if text else []
    if not found:
        if examples and terminal:
            note("An example of each task of the built-in model; `voidpad chat` is for several turns:")
            for prompt in builtin_prompts():
                err.print(f"voidpad generate {shlex.quote(prompt)}", markup=False)
        raise ConfigError(
            "no prompt: give one as an argument, with --file, with --messages or on standard input."
        )
    for number, one in enumerate(found):
        try:  # a stray byte of an argument and half a pair in JSON are lone surrogates
            json.dumps(one, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DataError(f"prompt {number}: not UTF-8, it holds half a character; convert it.") from None
    return found


def builtin_prompts(count: int | None = None) -> list[str]:
    """Prompts of the built-in model's tasks of one turn, one of each or so many, none of them a test problem's."""
    from voidpad.builtin.tasks import TASKS

    tasks, rng = [task for name, task in TASKS.items() if name != "tiny_turns"], Random(7)
    return [tasks[number % len(tasks)].sample(rng).prompt for number in range(count or len(tasks))]


def read(path: Path) -> str:
    """The text of a file; - is standard input."""
    standard = str(path) == "-"
    with readable(Path("standard input") if standard else path, "UTF-8 text", DataError):
        return (sys.stdin.buffer.read() if standard else path.read_bytes()).decode("utf-8-sig")


def from_lines(path: Path) -> list[tuple[Prompt, Any]]:
    """A prompt and its reference answer, if any, from each line: plain text, or objects with `prompt`, `question` or
    `messages`, and perhaps `answer`."""
    # Line feeds alone end a line: other separators, such as U+2028, may stand inside JSON strings.
    text = read(path).replace("\r\n", "\n")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise DataError(f"{path}: the file is empty. Put one prompt on each line.")
    if not text.lstrip().startswith("{"):
        return [(line, None) for _, line in lines]
    found = []
    for number, line in lines:
        value = _json(line, f"{path}, line {number}")
        named = value if isinstance(value, dict) else {}
        prompt = named.get("prompt") or named.get("question") or named.get("messages")
        if not isinstance(prompt, str | list):
            raise DataError(f'{path}, line {number}: needs "prompt": text or "messages": [...].')
        found.append((prompt, named.get("answer")))
    return found


def _json(text: str, place: str) -> Any:
    with readable(Path(place), "JSON", DataError):
        return json.loads(text)
