"""The exceptions that voidpad raises, and how errors of other libraries become one line of text.

Every message is one line that names the field, the value and the fix.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class VoidpadError(Exception):
    """Anything voidpad refuses to do; the command line prints it without a traceback."""


class ConfigError(VoidpadError):
    """A setting, or a combination of settings, that cannot work. Exit status 2."""


class PlanError(ConfigError):
    """A plan, or a field of one, that cannot work; `field` is the name of the field, empty if it is none alone."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class RoleError(VoidpadError):
    """A token role (mask, eos, void, rainbow) that is missing or ambiguous."""


class WeightsError(VoidpadError):
    """A checkpoint that is damaged, incomplete, unsafe or of an unknown kind."""


class ModelNotFoundError(WeightsError):
    """A model or adapter name that leads to no folder."""


class DataError(VoidpadError):
    """Input data that cannot be read or has nothing in it."""


class AssumedWarning(UserWarning):
    """Something that a checkpoint does not say, for which the usual value was taken."""


def warn_assumed(message: str) -> None:
    """Say what was assumed, at the line that opened the checkpoint."""
    warnings.warn(message, AssumedWarning, stacklevel=5)


class SandboxError(VoidpadError):
    """Generated code cannot be run as safely as was asked."""


def first_line(error: BaseException) -> str:
    """What another library says went wrong, for the end of a message: its first line, at most 200 characters."""
    from pydantic import ValidationError

    text = format_validation_error(error) if isinstance(error, ValidationError) else str(error)
    lines = text.strip().splitlines() or [type(error).__name__]
    return printable(lines[0])[:200]


def format_validation_error(error: ValidationError | Mapping[str, Any]) -> str:
    """What pydantic found wrong, on one line: each field, what is wrong with it, and the value.

    Takes the exception, or one entry of its `errors()`.
    """
    if not isinstance(error, Mapping):
        found = [format_validation_error(dict(one)) for one in error.errors()]
        return "; ".join(found[:6]) + ("; ..." if len(found) > 6 else "")
    plain = {"extra_forbidden": "no such setting", "missing": "is missing"}
    where = ".".join(str(part) for part in error["loc"])[:200]
    text = plain.get(error["type"]) or error["msg"].removeprefix("Value error, ")[:300]
    given = repr(error["input"])
    named = error["type"] not in plain and not isinstance(error["input"], Mapping) and len(given) < 60
    value = f" (got {given})" if named else ""
    return f"{where}: {text}{value}" if where else text


def install_command(extra: str) -> str:
    """The command that adds one of voidpad's extras. Pip finds the voidpad that is installed, from wherever it came."""
    return f"pip install 'voidpad[{extra}]'"


def printable(text: str) -> str:
    """One line for a terminal: line breaks and control characters are spelled out, so that they do nothing there."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def shown(value: Any, longest: int = 60) -> str:
    """A value of a file for an error message: printable and short."""
    text = ascii(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."
