"""Prompts from arguments, files and standard input."""

from __future__ import annotations

import codecs
import json
import sys
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError, first_line

Prompt = str | list[dict[str, Any]]


def gather(arguments: list[str] | None, *, file: Path | None, messages: Path | None) -> list[Prompt]:
    """All prompts asked for; standard input where nothing is named."""
    found: list[Prompt] = [_utf8(text, f"prompt {place}") for place, text in enumerate(arguments or [], 1)]
    if file is not None:
        found += from_lines(read(file), name=str(file))
    if messages is not None:
        found.append(conversation(parsed(read(messages), f"{messages}"), f"{messages}"))
    if not found and file is None and sys.stdin is not None and not sys.stdin.isatty():
        text = read(Path("-")).strip()
        found += [text] if text else []
    if not found:
        raise ConfigError(
            "no prompt: give one as an argument, with --file, with --messages or on standard input."
        )
    return found


def _utf8(text: str, place: str) -> str:
    """The text, unless it holds a lone surrogate: a stray byte of an argument, half a pair in JSON."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"{place}: not UTF-8, it holds half a character. Convert the text.")
    return text


def read(path: Path) -> str:
    name = "standard input" if str(path) == "-" else str(path)
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise DataError(f"{name}: {error.strerror or error}. Check the path.") from None
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{name}, line {line}: not UTF-8 (byte {error.start}). Convert the file.") from None


def from_lines(text: str, *, name: str) -> list[Prompt]:
    """One prompt a line: plain text, or JSON objects with `prompt` or `messages`."""
    lines = lines_of(text)
    if lines == [""]:
        raise DataError(f"{name}: the file is empty. Put one prompt on each line.")
    objects = lines[0].lstrip().startswith("{")
    found: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        place = f"{name}, line {number}"
        if not line.strip():
            raise DataError(f"{place}: the line is empty. Remove it.")
        found.append(_from_object(parsed(line, place), place) if objects else line)
    return found


def lines_of(text: str) -> list[str]:
    """The lines of a file. Other separators than line feeds, such as U+2028, may stand inside JSON strings."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON ({error.msg}).") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, deep nesting
        raise DataError(f"{place}: not JSON ({first_line(error)}).") from None


def _from_object(value: Any, place: str) -> Prompt:
    if isinstance(value, dict) and isinstance(value.get("prompt"), str) and value["prompt"]:
        return _utf8(value["prompt"], place)
    if isinstance(value, dict) and "messages" in value:
        return conversation(value["messages"], place)
    raise DataError(f'{place}: needs "prompt": text or "messages": [...].')


def conversation(value: Any, place: str) -> Prompt:
    turns: Any = value.get("messages") if isinstance(value, dict) else value
    fine = isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns)
    if not fine or any(not isinstance(turn.get(part), str) for turn in turns for part in ("role", "content")):
        raise DataError(f'{place}: messages must be a list of {{"role": ..., "content": ...}}.')
    from voidpad.models.text import chat

    try:
        chat(turns)
    except ConfigError as error:
        raise DataError(f"{place}: {error}") from None
    return [{**turn, "content": _utf8(turn["content"], place)} for turn in turns]
