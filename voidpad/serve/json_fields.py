"""JSON bodies and their fields, checked without surprises: no NaN, no endless nesting, no repeated keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from voidpad.errors import VoidpadError

_Kind = TypeVar("_Kind")


class RequestError(VoidpadError):
    """A request this server refuses; becomes an OpenAI error object with this status."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code, self.kind = param, status, code, kind
        self.headers = dict(headers or {})


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body."""
    try:
        given = json.loads(body, object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise RequestError("the body is not UTF-8 text.") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply.") from None
    except ValueError as error:
        line = " ".join(str(error).split())[:160]
        raise RequestError(f"the body is not valid JSON: {line}.") from None
    if not isinstance(given, dict):
        raise RequestError("the body must be a JSON object.")
    return given


class JsonFields:
    """Fields of a JSON object, taken one by one with their types checked; null counts as absent."""

    def __init__(self, given: Mapping[str, Any], prefix: str = "") -> None:
        self.left = {name: value for name, value in given.items() if value is not None}
        self.prefix = prefix

    def take(self, name: str) -> Any:
        return self.left.pop(name, None)

    def required(self, name: str) -> Any:
        if name not in self.left:
            raise RequestError(f"{self.prefix}{name} is missing.", param=self.prefix + name)
        return self.left.pop(name)

    def rest(self) -> dict[str, Any]:
        left, self.left = self.left, {}
        return left

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "text")

    def flag(self, name: str) -> bool | None:
        return self._typed(name, bool, "true or false")

    def mapping(self, name: str) -> dict[str, Any] | None:
        return self._typed(name, dict, "an object")

    def only_flag(self, name: str) -> bool:
        """The flag of an object that may hold nothing else."""
        value = self.flag(name) or False
        if self.left:
            other = next(iter(self.left))
            raise RequestError(f"{self.prefix}{other[:60]} is not supported.", param=self.prefix + other[:60])
        return value

    def whole(self, name: str, least: int, most: int) -> int | None:
        value: int | None = self._between(name, least, most, int, "a whole number")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self._between(name, least, most, int | float, "a number")
        return None if value is None else float(value)

    def _between(self, name: str, least: float, most: float, kind: Any, called: str) -> Any:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, kind):
            raise RequestError(f"{self.prefix}{name} must be {called}.", param=self.prefix + name)
        if not least <= value <= most:  # which no NaN does
            raise RequestError(
                f"{self.prefix}{name}={str(value)[:40]} must lie between {least} and {most}.",
                param=self.prefix + name,
            )
        return value

    def _typed(self, name: str, kind: type[_Kind], called: str) -> _Kind | None:
        value = self.take(name)
        if value is not None and not isinstance(value, kind):
            raise RequestError(f"{self.prefix}{name} must be {called}.", param=self.prefix + name)
        return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name[:40]!r} is there twice")
        values[name] = value
    return values


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")
