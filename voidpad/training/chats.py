"""Read conversations from the formats people keep them in, and cut them into training examples.

A record is one JSON object or one Parquet row. `conversation` turns a record into messages with the roles system,
user and assistant; `answers` says which assistant messages are learnt, each with the messages before it as its
prompt. A record that gives no example raises `Dropped`, which names one of `REASONS`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError, first_line, shown
from voidpad.files import readable

Message = dict[str, str]  # {"role": ..., "content": ...}

NAMES = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "chatgpt", "model", "bot"),
    "tool": ("tool", "function", "function_call", "tool_call", "tool_response", "observation"),
}
ROLES = {name: role for role, names in NAMES.items() for name in names}
# Fields of a question, which are put together, and of its answer.
PAIRS = ((("prompt",), "response"), (("prompt",), "completion"), (("instruction", "input"), "output"))
SURROGATE = re.compile("[\ud800-\udfff]")
MAPPED = ("messages", "role", "content", "prompt", "response", "system")

# Why a conversation or an example is not used.
REASONS = {
    "bad": "cannot be read as a conversation",
    "no_answer": "no assistant message to learn",
    "role_order": "user and assistant do not alternate",
    "tools": "tool calls",
    "not_text": "images or other parts that are not text",
    "not_single": "not one user message and one answer",
    "needs_template": "system prompt or earlier messages, which need the chat template",
    "special_tokens": "a special token in the text that cannot stay text",
    "repeated": "repeats an earlier example",
    "empty": "empty response",
    "too_long": "prompt and response are too long together",
    "no_room": "the prompt leaves no room for a response within the maximum length",
    "not_sampled": "not drawn for the sample",
}
FAULTS = ("bad", "special_tokens")  # these stop `voidpad data prepare` unless --skip-bad is given


class Dropped(Exception):
    """A record or an example is not used. `reason` is a key of REASONS, `detail` says what is wrong here."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def field_map(text: str | None) -> dict[str, str]:
    """`prompt=question,response=answer` as a dictionary from our field names to the file's."""
    names: dict[str, str] = {}
    for part in (text or "").split(","):
        ours, equals, theirs = (word.strip() for word in part.partition("="))
        if not part.strip():
            continue
        if not equals or not theirs or ours not in MAPPED:
            raise ConfigError(f"--map {part.strip()!r}: write NAME=FIELD with a NAME of {', '.join(MAPPED)}.")
        names[ours] = theirs
    if len(names.keys() & {"prompt", "response"}) == 1:
        raise ConfigError(f"--map {text!r}: name the field of messages, or those of prompt and response.")
    return names


def conversation(record: Any, names: Mapping[str, str] | None = None) -> list[Message]:
    """The messages of a record, a JSON value or the bytes of one, with their roles checked.

    `names` is a field map; without one the format is detected.

    Formats: `messages` or `conversations` (role and content, or ShareGPT's from and value), `prompt` and `response`
    (or `completion`), Alpaca's `instruction`, `input` and `output`. `system` beside any of them is the system prompt.
    """
    names = names or {}
    if isinstance(record, bytes):
        try:
            record = json.loads(record.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise Dropped("bad", f"not JSON in UTF-8 ({first_line(error)})") from None
    if not isinstance(record, Mapping):
        raise Dropped("bad", "not an object")
    fields = _fields(record, names)
    for name in ("messages", "prompt", "response"):
        if name in names and name not in fields:
            given = ", ".join(map(shown, fields)) or "none"
            raise Dropped("bad", f"no field {names[name]!r} (--map); it has {given}")
    messages = _messages(fields, names)
    if "system" in fields and not (messages and messages[0]["role"] == "system"):
        messages = [{"role": "system", "content": _content(fields["system"], "system")}, *messages]
    if messages and messages[0]["role"] == "system" and not messages[0]["content"].strip():
        messages = messages[1:]

    # A system prompt or none, then user and assistant by turns, with at least one assistant message.
    roles = [message["role"] for message in messages]
    said = ", ".join(roles) or "none"
    if "assistant" not in roles:
        raise Dropped("no_answer", f"no assistant message (roles: {said})")
    spoken = roles[1:] if roles[0] == "system" else roles
    if any(role != ("user", "assistant")[place % 2] for place, role in enumerate(spoken)):
        raise Dropped("role_order", f"user and assistant do not alternate (roles: {said})")
    if any(message["role"] == "user" and not message["content"].strip() for message in messages):
        raise Dropped("bad", "empty prompt")
    return messages


def answers(messages: Sequence[Message], turns: str = "last") -> list[int]:
    """Which messages of a checked conversation to learn: its `last` assistant message, or `every` one of them.

    `single` takes conversations of one user message and one answer alone, as the paper does.
    """
    if turns == "single" and [message["role"] for message in messages] != ["user", "assistant"]:
        raise Dropped("not_single", f"{len(messages)} messages")
    found = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return found if turns == "every" else found[-1:]


def _fields(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The fields of an object under our names, without nulls, with which Parquet fills gaps."""
    fields = {key: value for key, value in record.items() if value is not None}
    own = {key: value for key, value in fields.items() if key not in names}
    return own | {ours: fields[theirs] for ours, theirs in names.items() if theirs in fields}


def _messages(fields: Mapping[str, Any], names: Mapping[str, str]) -> list[Message]:
    name = "messages" if "messages" in fields else "conversations"
    if name in fields and "prompt" not in names:
        value = fields[name]
        if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
            raise Dropped("bad", f"{name} is not a list of objects with a role and a content")
        return [_message(_fields(message, names), f"{name}[{place}]") for place, message in enumerate(value)]
    for questions, answer in PAIRS:
        if questions[0] in fields and answer in fields:
            parts = [_content(fields[name], name) for name in questions if name in fields]
            question = "\n\n".join(part for part in parts if part.strip())
            said = _content(fields[answer], answer)
            return [{"role": "user", "content": question}, {"role": "assistant", "content": said}]
    raise Dropped(
        "bad",
        "neither 'messages' or 'conversations', nor 'prompt' and 'response', nor 'instruction' and 'output'; "
        "--map names other fields",
    )


def _message(fields: Mapping[str, Any], where: str) -> Message:
    if "role" not in fields and "from" in fields:  # ShareGPT's names
        fields = {**fields, "role": fields["from"], "content": fields.get("value")}
    given = fields.get("role")
    role = ROLES.get(str(given).strip().lower())
    if role is None:
        raise Dropped("bad", f"{where}: role {shown(given)} is unknown; use system, user or assistant")
    if role == "tool" or fields.get("tool_calls") or fields.get("function_call"):
        raise Dropped("tools", f"{where} calls a tool or holds its result")
    return {"role": role, "content": _content(fields.get("content"), where)}


def _content(value: Any, where: str) -> str:
    """A text, or a list of parts of which all are text."""
    parts = value if isinstance(value, list) else [value]
    texts = []
    for part in parts:
        if isinstance(part, Mapping) and part.get("type", "text") != "text":
            raise Dropped("not_text", f"{where} has a part of type {shown(part['type'])}")
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str) or SURROGATE.search(text):
            raise Dropped("bad", f"{where} has no text, or half a character (a lone surrogate)")
        texts.append(text)
    return "".join(texts)


# Files


def read(path: Path) -> Iterator[tuple[str, list[Message], str]]:
    """(where it stands, prompt, last answer) of each conversation of a JSON file. A record without one is an error."""
    with readable(path, "text", DataError):
        for place, record in records(path):
            try:
                messages = conversation(record)
                (answer,) = answers(messages)
            except Dropped as dropped:
                raise DataError(f"{place}: {dropped.detail}.") from None
            yield place, messages[:answer], messages[answer]["content"]


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it stands, record) of each record of a JSON file: an array of records in a .json file, or JSON lines.

    A line is given as it stands, in bytes. Blank lines are left out, but they count as lines.
    """
    if path.suffix == ".json":
        try:
            whole = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError):
            whole = None  # JSON lines, whatever the name says
        if isinstance(whole, list):
            yield from ((f"{path} item {number}", record) for number, record in enumerate(whole, 1))
            return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if text := line.removeprefix(codecs.BOM_UTF8).strip():
                yield f"{path}:{number}", text
