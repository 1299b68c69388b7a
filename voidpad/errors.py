"""What can go wrong, as one tree. Every message is one line: the field, the value, the fix."""

from collections.abc import Mapping
from typing import Any


class VoidpadError(Exception):
    """Anything voidpad refuses to do; the command line prints it without a traceback."""


class ConfigError(VoidpadError):
    """A setting, or a combination of settings, that cannot work. Exit status 2."""


class RoleError(VoidpadError):
    """A token role (mask, eos, void, rainbow) that is missing or ambiguous."""


class WeightsError(VoidpadError):
    """A checkpoint that is damaged, incomplete, unsafe or of an unknown kind."""


class DataError(VoidpadError):
    """Input data that cannot be read or has nothing in it."""


class AssumedWarning(UserWarning):
    """Something that a checkpoint does not say, for which the usual value was taken."""


class SandboxError(VoidpadError):
    """Generated code cannot be run as safely as was asked."""


def reason(error: BaseException) -> str:
    """What another library says went wrong, as the end of a message: its first line, at most 200 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


PLAIN = {"extra_forbidden": "no such setting", "missing": "is missing"}  # pydantic's kinds


def fault(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors in our words: the field, what is wrong, the value."""
    where = ".".join(str(part) for part in error["loc"])[:200]
    text = PLAIN.get(error["type"]) or error["msg"].removeprefix("Value error, ")[:300]
    given = repr(error["input"])
    named = error["type"] not in PLAIN and not isinstance(error["input"], Mapping) and len(given) < 60
    value = f" (got {given})" if named else ""
    return f"{where}: {text}{value}" if where else text


def printable(text: str) -> str:
    """One line for a terminal: line breaks and control characters are spelled out, so that they do nothing there."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
