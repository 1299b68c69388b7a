"""Prompts from arguments, files and standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from voidpad.errors import ConfigError, DataError, first_line

Prompt = str | list[dict[str, Any]]


def gather(
    arguments: list[str] | None = None, *, file: Path | None = None, messages: Path | None = None
) -> list[Prompt]:
    """All prompts asked for; standard input where nothing is named."""
    found: list[Prompt] = [_utf8(text, f"prompt {place}") for place, text in enumerate(arguments or [], 1)]
    if file is not None:
        found += [prompt for prompt, _ in from_lines(file)]
    if messages is not None:
        found.append(_conversation(_parsed(read(messages), str(messages)), str(messages)))
    if not found and file is None and sys.stdin is not None and not sys.stdin.isatty():
        text = read(Path("-")).strip()
        found += [text] if text else []
    if not found:
        raise ConfigError(
            "no prompt: give one as an argument, with --file, with --messages or on standard input."
        )
    return found


def builtin_prompts(count: int) -> list[str]:
    """Prompts of the built-in model's tasks of one turn, none of them a test problem's."""
    from voidpad.builtin.tasks import TASKS

    tasks, rng = [task for name, task in TASKS.items() if name != "tiny_turns"], Random(7)
    return [tasks[number % len(tasks)].sample(rng).prompt for number in range(count)]


def read(path: Path) -> str:
    """The text of a file; - is standard input."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{name}: {error.strerror or error}. Check the path.") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{name}, line {line}: not UTF-8 (byte {error.start}). Convert the file.") from None


def from_lines(path: Path) -> list[tuple[Prompt, Any]]:
    """A prompt and its reference answer, if any, from each line: plain text, or objects with `prompt` (or `question`)
    or `messages`, and perhaps `answer`."""
    # Line feeds alone end a line: other separators, such as U+2028, may stand inside JSON strings.
    text = read(path).replace("\r\n", "\n")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise DataError(f"{path}: the file is empty. Put one prompt on each line.")
    if not text.lstrip().startswith("{"):
        return [(line, None) for _, line in lines]
    return [
        _from_object(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")
        for number, line in lines
    ]


def _from_object(value: Any, place: str) -> tuple[Prompt, Any]:
    if isinstance(value, dict):
        prompt = value.get("prompt") or value.get("question")
        if isinstance(prompt, str):
            return _utf8(prompt, place), value.get("answer")
        if "messages" in value:
            return _conversation(value["messages"], place), value.get("answer")
    raise DataError(f'{place}: needs "prompt": text or "messages": [...].')


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({first_line(error)}).") from None


def _conversation(value: Any, place: str) -> Prompt:
    from voidpad.models.text import chat

    turns: Any = value.get("messages") if isinstance(value, dict) else value
    try:
        chat(turns)
        return [{**turn, "content": _utf8(turn["content"], place)} for turn in turns]
    except ConfigError as error:
        raise DataError(f"{place}: {error}") from None
    except (TypeError, KeyError, AttributeError):
        raise DataError(f'{place}: messages must be a list of {{"role": ..., "content": ...}}.') from None


def _utf8(text: str, place: str) -> str:
    """The text, unless it holds a lone surrogate: a stray byte of an argument, half a pair in JSON."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"{place}: not UTF-8, it holds half a character. Convert the text.")
    return text
