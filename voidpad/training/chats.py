"""Read conversations from the formats people keep them in, and cut them into training examples.

A record is one JSON object or one Parquet row. `conversation` turns a record into messages with the roles system,
user and assistant; `examples` turns the messages into pairs of a prompt (the messages so far) and a response (one
assistant message). A record that gives no example raises `Dropped`, which names one of `REASONS`.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError, reason

Message = dict[str, str]  # {"role": ..., "content": ...}

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot"), "assistant"),
    **dict.fromkeys(
        ("tool", "function", "function_call", "tool_call", "tool_response", "observation"), "tool"
    ),
}
TURNS = ("last", "every", "single")
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


@dataclass(frozen=True)
class ChatExample:
    """The messages a model is shown, and the assistant message it learns."""

    prompt: list[Message]
    response: str


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
    complete = (
        "messages" in names or {"prompt", "response"} <= names.keys() or names.keys() <= {"role", "content"}
    )
    if not complete:
        raise ConfigError(f"--map {text!r}: name the field of messages, or those of prompt and response.")
    return names


def conversation(record: Any, names: Mapping[str, str] | None = None) -> list[Message]:
    """The messages of a record, with their roles checked. `names` is a field map; without one the format is detected.

    Formats: `messages` or `conversations` (role and content, or ShareGPT's from and value), `prompt` and `response`
    (or `completion`), Alpaca's `instruction`, `input` and `output`. `system` beside any of them is the system prompt.
    """
    names = names or {}
    if isinstance(record, list) and record and all(isinstance(message, Mapping) for message in record):
        record = {names.get("messages", "messages"): record}
    if not isinstance(record, Mapping):
        raise Dropped("bad", "not an object")
    # Parquet fills gaps with null.
    fields = {key: value for key, value in record.items() if value is not None}
    messages = _messages(fields, names)
    system = fields.get(names.get("system", "system"))
    if system is not None and not (messages and messages[0]["role"] == "system"):
        messages = [{"role": "system", "content": _content(system, "system")}, *messages]
    if messages and messages[0]["role"] == "system" and not messages[0]["content"].strip():
        messages = messages[1:]
    _check_roles(messages)
    return messages


def examples(messages: Sequence[Message], turns: str = "last") -> list[ChatExample]:
    """The examples of a checked conversation: of its `last` assistant message, or of `every` one of them.

    `single` takes conversations of one user message and one answer alone, as the paper does.
    """
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if turns == "single" and [message["role"] for message in messages] != ["user", "assistant"]:
        raise Dropped("not_single", f"{len(messages)} messages")
    chosen = answers if turns == "every" else answers[-1:]
    return [ChatExample(list(messages[:place]), messages[place]["content"]) for place in chosen]


def _messages(fields: Mapping[str, Any], names: Mapping[str, str]) -> list[Message]:
    mapped = {ours: theirs for ours, theirs in names.items() if ours not in ("role", "content", "system")}
    absent = [theirs for theirs in mapped.values() if theirs not in fields]
    if absent:
        raise Dropped(
            "bad", f"no field {absent[0]!r} (--map); it has {', '.join(map(repr, fields)) or 'none'}"
        )
    listed = next(
        (name for name in (names.get("messages"), "messages", "conversations") if name in fields), None
    )
    if "prompt" not in names and listed:
        return _listed(fields[listed], listed, names)
    prompt, response = names.get("prompt", "prompt"), names.get("response", "response")
    if response not in fields and "completion" in fields:
        response = "completion"
    if prompt in fields and response in fields:
        return _pair(_content(fields[prompt], prompt), _content(fields[response], response))
    if "instruction" in fields and "output" in fields:
        parts = [_content(fields[name], name) for name in ("instruction", "input") if name in fields]
        text = "\n\n".join(part for part in parts if part.strip())
        history = fields.get("history") or ()
        if not isinstance(history, Sequence):  # a text fails as a list of pairs
            raise Dropped("bad", "history is not a list of [prompt, response]")
        earlier = [message for pair in history for message in _history(pair)]
        return [*earlier, *_pair(text, _content(fields["output"], "output"))]
    raise Dropped(
        "bad",
        "neither 'messages' or 'conversations', nor 'prompt' and 'response', nor 'instruction' and 'output'; "
        "--map names other fields",
    )


def _pair(prompt: str, response: str) -> list[Message]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def _history(pair: Any) -> list[Message]:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise Dropped("bad", "history is not a list of [prompt, response]")
    return _pair(_content(pair[0], "history"), _content(pair[1], "history"))


def _listed(value: Any, name: str, names: Mapping[str, str]) -> list[Message]:
    """A list of messages; Parquet may store it as one list for each field."""
    if isinstance(value, Mapping) and value and all(isinstance(part, list) for part in value.values()):
        value = [dict(zip(value, parts, strict=False)) for parts in zip(*value.values(), strict=False)]
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not all(isinstance(m, Mapping) for m in value)
    ):
        raise Dropped("bad", f"{name} is not a list of objects with a role and a content")
    messages = []
    for place, message in enumerate(value):
        where = f"{name}[{place}]"
        sharegpt = "role" not in names and "role" not in message and "from" in message
        given = message.get("from" if sharegpt else names.get("role", "role"))
        content = message.get("value" if sharegpt else names.get("content", "content"))
        role = ROLES.get(given.strip().lower()) if isinstance(given, str) else None
        if role is None:
            known = ", ".join(sorted({*ROLES.values()}))
            raise Dropped("bad", f"{where}: role {given!r:.60} is unknown; use one of {known}")
        if role == "tool" or message.get("tool_calls") or message.get("function_call"):
            raise Dropped("tools", f"{where} calls a tool or holds its result")
        messages.append({"role": role, "content": _content(content, where)})
    return messages


def _content(value: Any, where: str) -> str:
    """A text, or a list of parts of which all are text."""
    if isinstance(value, list):
        texts = []
        for part in value:
            if isinstance(part, Mapping) and part.get("type", "text") != "text":
                raise Dropped("not_text", f"{where} has a part of type {part['type']!r}")
            text = part.get("text") if isinstance(part, Mapping) else part
            if not isinstance(text, str):
                raise Dropped("bad", f"{where} has a part without text")
            texts.append(text)
        value = "".join(texts)
    if not isinstance(value, str):
        raise Dropped("bad", f"{where} has no text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise Dropped("bad", f"{where} holds half a character (a lone surrogate)")
    return value


def _check_roles(messages: Sequence[Message]) -> None:
    """A system prompt or none, then user and assistant by turns, with at least one assistant message."""
    spoken = list(messages[1:] if messages and messages[0]["role"] == "system" else messages)
    roles = [message["role"] for message in spoken]
    if "assistant" not in roles:
        said = ", ".join(message["role"] for message in messages) or "none"
        raise Dropped("no_answer", f"no assistant message (roles: {said})")
    for place, role in enumerate(roles):
        expected = ("user", "assistant")[place % 2]
        if role != expected:
            raise Dropped("role_order", f"message {place + 1} is of role {role}, and {expected} was expected")
    for place, message in enumerate(spoken):
        if message["role"] == "user" and not message["content"].strip():
            raise Dropped(
                "bad", "empty prompt" if len(spoken) == 2 else f"user message {place // 2 + 1} is empty"
            )


def read(path: Path, *, turns: str = "last") -> Iterator[tuple[str, ChatExample]]:
    """(where it stands, example) of each example of a JSON file. A record that gives none is an error here."""
    try:
        for place, record in records(path, str(path)):
            try:
                if isinstance(record, Dropped):
                    raise record
                for example in examples(conversation(record), turns):
                    yield place, example
            except Dropped as dropped:
                raise DataError(f"{place}: {dropped.detail}.") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}. Check the path.") from None


def records(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """(where it stands, record) of each record of a JSON file: JSON lines, or one array of records.

    A line that cannot be parsed is given as `Dropped`, so that the caller can count it and read on.
    """
    with path.open("rb") as file:
        first = file.readline()
        while first and not first.removeprefix(codecs.BOM_UTF8).strip():
            first = file.readline()
        start = first.removeprefix(codecs.BOM_UTF8).lstrip()
        file.seek(0)
        if start.startswith(b"[") and (path.suffix == ".json" or isinstance(_parsed(start), Dropped)):
            whole = _parsed(file.read().removeprefix(codecs.BOM_UTF8))
            if isinstance(whole, Dropped):
                raise DataError(
                    f"{name}: {whole.detail}; a file that begins with [ is read as one JSON array."
                )
            if not whole or not all(isinstance(message, dict) and _is_message(message) for message in whole):
                yield from ((f"{name} item {number}", record) for number, record in enumerate(whole, 1))
            else:
                yield f"{name} item 1", whole  # the file is one conversation
            return
        for number, line in enumerate(file, 1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            yield f"{name}:{number}", _parsed(text)


def _is_message(record: Mapping[str, Any]) -> bool:
    return {"role", "content"} <= record.keys() or {"from", "value"} <= record.keys()


def _parsed(raw: bytes) -> Any:
    """The JSON value of these bytes, or the reason why there is none."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Dropped("bad", "not UTF-8")
    if not text.strip():
        return Dropped("bad", "empty line")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return Dropped("bad", f"not JSON ({error.msg})")
    except (ValueError, RecursionError) as error:  # a number of too many digits, deep nesting
        return Dropped("bad", f"not JSON ({reason(error)})")
