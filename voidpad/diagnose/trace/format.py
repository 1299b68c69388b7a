"""A decode on disk: JSON lines, one header, one line per pass, one end line for every row; arrays as base64.

Slots count from 0 at the first canvas slot. `length` is the canvas during the pass; a pass's commits apply
first, then its edits in order, and `masks` and `first_eos` describe the canvas after both.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator
from pydantic.dataclasses import dataclass

from voidpad.decode.outcome import Result
from voidpad.roles import Roles

VERSION = 1
Detail = Literal["commits", "probs", "top5"]
DETAILS: tuple[Detail, ...] = get_args(Detail)
Phase = Literal["probe", "decode", "shared"]
_ARRAYS = ConfigDict(arbitrary_types_allowed=True)


def _pack(values: Any, kind: str) -> str:
    """Numbers as base64 of their little-endian bytes; `kind` is a numpy type such as "<f2"."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def _unpack(text: Any, kind: str) -> np.ndarray:
    """The numbers `_pack` wrote; arrays pass through, so a record can be built from either."""
    if isinstance(text, np.ndarray):
        return text.astype(kind).ravel()
    if not isinstance(text, str):
        raise ValueError(f"expected base64 text, found {type(text).__name__}")
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype=kind)
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from None
    except ValueError:
        raise ValueError(f"not a whole number of {kind} values") from None


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; a reader needs to know only that there was no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Half = Annotated[
    np.ndarray,
    PlainValidator(lambda value: _unpack(value, "<f2")),
    PlainSerializer(lambda value: _pack(value, "<f2")),
]
Int = Annotated[
    np.ndarray,
    PlainValidator(lambda value: _unpack(value, "<i4")),
    PlainSerializer(lambda value: _pack(value, "<i4")),
]
Number = Annotated[float | None, BeforeValidator(_finite)]
# The bound keeps a damaged file from asking for more memory than a machine has.
Count = Annotated[int, Field(ge=0, le=2**20)]


@dataclass(frozen=True)
class Prompt:
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was run; `plan` is the plan's fields as plain values, for reading only."""

    model: str
    family: str
    plan_name: str
    roles: Roles
    prompt: Prompt
    plan: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    detail: Detail = "commits"
    recorded: Literal["canvas", "block"] = "canvas"  # slots that the arrays cover; under a cache, the block


@dataclass(frozen=True)
class Edit:
    """A change of length: `count` slots holding `id` come in at slot `at`, or `count` slots from it go."""

    kind: Literal["append", "insert", "cut"]
    at: Count
    count: Annotated[Count, Field(ge=1)]
    id: int | None = None

    @model_validator(mode="after")
    def _has_token(self) -> Edit:
        if self.kind != "cut" and self.id is None:
            raise ValueError(f"{self.kind} needs the id of the new slots")
        if self.id is not None and not 0 <= self.id < 2**31:
            raise ValueError(f"{self.kind} names something that is no token id")
        return self

    def apply(self, canvas: np.ndarray, *, new: int | None = None) -> np.ndarray:
        """The slots after the change; `new` stands in the new ones instead of the token."""
        reach = self.at + self.count if self.kind == "cut" else self.at
        if reach > len(canvas) or (self.kind == "append" and self.at != len(canvas)):
            raise ValueError(f"{self.kind} of {self.count} at slot {self.at} does not fit {len(canvas)}")
        if self.kind == "cut":
            return np.delete(canvas, slice(self.at, self.at + self.count))
        return np.insert(
            canvas, self.at, np.full(self.count, self.id if new is None else new, dtype=canvas.dtype)
        )


@dataclass(frozen=True, kw_only=True, eq=False, config=_ARRAYS)
class Pass:
    """One forward pass of one row. The arrays have an entry for each of the `length` slots.

    Committed slots are recorded too, unless the header says `recorded: block`: then an array holds the slots that the
    pass itself needed, and NaN (or the id -1) elsewhere.
    """

    n: Count
    phase: Phase
    length: Count
    masks: Count
    open: Count = 0  # first slot of the window that may be written
    window: Count = 0  # its size
    commits: tuple[tuple[Count, int, Number], ...] = ()  # (slot, id, the rule's score)
    edits: tuple[Edit, ...] = ()
    first_eos: Count | None = None
    signal: dict[str, Number] = Field(default_factory=dict)  # what the length rule looked at
    p_eos: Half | None = None  # (length,) probability of EOS
    p_void: Half | None = None  # (length,)
    top: Half | None = None  # (length,) largest probability
    top5_ids: Int | None = None  # (length * 5,)
    top5_p: Half | None = None  # (length * 5,)

    @model_validator(mode="after")
    def _fits(self) -> Pass:
        wide = {"p_eos": 1, "p_void": 1, "top": 1, "top5_ids": 5, "top5_p": 5}
        for name, times in wide.items():
            values = getattr(self, name)
            if values is not None and len(values) != self.length * times:
                raise ValueError(f"{name} has {len(values)} values for {self.length} slots")
        if self.phase == "probe" and self.commits:
            raise ValueError("a probe commits nothing")
        if outside := [slot for slot, _, _ in self.commits if slot >= self.length]:
            raise ValueError(f"commits write slot {outside[0]} of a canvas of {self.length}")
        if any(not 0 <= token < 2**31 for _, token, _ in self.commits):
            raise ValueError("commits write something that is no token id")
        return self

    def apply(self, canvas: np.ndarray) -> np.ndarray:
        """The canvas after this pass, from the canvas before it."""
        if len(canvas) != self.length:
            raise ValueError(f"pass {self.n} has {self.length} slots, the pass before it left {len(canvas)}")
        canvas = canvas.copy()
        for slot, token, _ in self.commits:
            canvas[slot] = token
        for edit in self.edits:
            canvas = edit.apply(canvas)
        return canvas


@dataclass(frozen=True)
class End:
    """The last line of a row."""

    result: Result
    pieces: dict[int, str] = Field(default_factory=dict)  # the text of every id the trace names


@dataclasses.dataclass(frozen=True)
class Trace:
    """One row's decode, from the blank canvas to its result."""

    row: int
    header: Header
    passes: tuple[Pass, ...]
    result: Result
    pieces: dict[int, str]

    def canvases(self) -> Iterator[np.ndarray]:
        """The canvas's ids after each pass, edits included."""
        canvas = np.full(self.passes[0].length if self.passes else 0, self.header.roles.mask, dtype=np.int64)
        for step in self.passes:
            canvas = step.apply(canvas)
            yield canvas
