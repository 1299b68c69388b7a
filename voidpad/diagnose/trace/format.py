"""A decode on disk: JSON lines, one header, one line per pass, one end line for every row; arrays as base64.

Slots count from 0 at the first canvas slot. `length` is the canvas during the pass; a pass's commits apply
first, then its edits in order, and `masks` and `first_eos` describe the canvas after both.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from voidpad.decode.outcome import Result
from voidpad.decode.rows import EditKind
from voidpad.errors import DataError, RoleError, first_line, format_validation_error
from voidpad.files import readable, store
from voidpad.roles import Roles

VERSION = 2
Detail = Literal["commits", "probs", "top5"]
DETAILS: tuple[Detail, ...] = get_args(Detail)
Phase = Literal["probe", "decode", "shared"]
_ARRAYS = ConfigDict(arbitrary_types_allowed=True)


def _unpack(kind: str, value: Any) -> np.ndarray:
    """An array of a numpy type such as "<f2", from base64 of its bytes or from another array."""
    if isinstance(value, np.ndarray):
        return value.astype(kind).ravel()
    return np.frombuffer(base64.b64decode(value, validate=True), dtype=kind)


def _pack(kind: str, values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def _finite(value: Any) -> Any:
    """None for infinity and NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Half = Annotated[np.ndarray, PlainValidator(partial(_unpack, "<f2")), PlainSerializer(partial(_pack, "<f2"))]
Int = Annotated[np.ndarray, PlainValidator(partial(_unpack, "<i4")), PlainSerializer(partial(_pack, "<i4"))]
Number = Annotated[float | None, BeforeValidator(_finite)]


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
    template: tuple[int, ...] = ()  # with gaps: what the canvas held at first, masks in the gaps


@dataclass(frozen=True)
class Edit:
    """A change of length: `count` slots holding `id` come in at slot `at`, or `count` slots from it go."""

    kind: EditKind
    at: NonNegativeInt
    count: NonNegativeInt
    id: int | None = None

    def apply(self, canvas: np.ndarray, *, new: int | None = None) -> np.ndarray:
        """The slots after the change; `new` stands in the new ones instead of the token."""
        if self.kind == "cut":
            return np.delete(canvas, slice(self.at, self.at + self.count))
        token = self.id if new is None else new
        return np.insert(canvas, self.at, np.full(self.count, token))


@dataclass(frozen=True, kw_only=True, eq=False, config=_ARRAYS)
class Pass:
    """One forward pass of one row. The arrays have an entry for each of the `length` slots.

    Committed slots are recorded too, unless the header says `recorded: block`: then an array holds the slots that the
    pass itself needed, and NaN (or the id -1) elsewhere. So it does at the fixed text between gaps.
    """

    n: NonNegativeInt
    phase: Phase
    length: NonNegativeInt
    masks: NonNegativeInt
    open: NonNegativeInt = 0  # first slot of the window that may be written
    window: NonNegativeInt = 0  # its size
    commits: tuple[tuple[NonNegativeInt, int, Number], ...] = ()  # (slot, id, the rule's score)
    forced: tuple[NonNegativeInt, ...] | None = None  # slots that a constraint decided
    edits: tuple[Edit, ...] = ()
    first_eos: NonNegativeInt | None = None
    signal: dict[str, Number] = Field(default_factory=dict)  # what the length rule looked at
    p_eos: Half | None = None  # (length,) probability of EOS
    p_void: Half | None = None  # (length,)
    top: Half | None = None  # (length,) largest probability
    top5_ids: Int | None = None  # (length * 5,)
    top5_p: Half | None = None  # (length * 5,)

    def apply(self, canvas: np.ndarray) -> np.ndarray:
        """The canvas after this pass, from the canvas before it."""
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
    """One row's decode, from the first canvas to its result."""

    row: int
    header: Header
    passes: tuple[Pass, ...]
    result: Result
    pieces: dict[int, str]

    @property
    def start(self) -> np.ndarray:
        """The canvas's ids before the first pass: masks, or the template's text and gaps."""
        blank = [self.header.roles.mask] * (self.passes[0].length if self.passes else 0)
        return np.array(self.header.template or blank, dtype=np.int64)

    def canvases(self) -> Iterator[np.ndarray]:
        """The canvas's ids after each pass, edits included."""
        canvas = self.start
        for step in self.passes:
            canvas = step.apply(canvas)
            yield canvas


# The lines of a file.

_HEADER, _PASS, _END = TypeAdapter(Header), TypeAdapter(Pass), TypeAdapter(End)


def header_record(row: int, header: Header) -> dict[str, Any]:
    fields = _HEADER.dump_python(header, mode="json") | {"roles": header.roles.stored()}
    return {"type": "header", "version": VERSION, "row": row, **fields}


def pass_record(row: int, step: Pass) -> dict[str, Any]:
    fields = _PASS.dump_python(step, mode="json")
    kept = {name: value for name, value in fields.items() if value is not None or name == "first_eos"}
    return {"type": "pass", "row": row, **kept}


def end_record(row: int, end: End) -> dict[str, Any]:
    return {"type": "end", "row": row, **_END.dump_python(end, mode="json")}


def records(trace: Trace) -> Iterator[dict[str, Any]]:
    """The trace as the objects of its lines."""
    yield header_record(trace.row, trace.header)
    for step in trace.passes:
        yield pass_record(trace.row, step)
    yield end_record(trace.row, End(trace.result, trace.pieces))


def write(path: Path | str, traces: Iterable[Trace]) -> None:
    """Write a trace file. Its text is ASCII, so that no reader takes a character of a token for a line break."""
    lines = (
        json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
        for trace in traces
        for record in records(trace)
    )
    store(Path(path), lines)


def read(path: Path | str) -> list[Trace]:
    """Every row of a trace file; one that is damaged or no trace is a DataError that names the line.

    What a line says is trusted: commits and edits are not replayed to see whether they agree with the counts.
    """
    with readable(Path(path), "trace", DataError):
        lines = Path(path).read_bytes().split(b"\n")
    begun: dict[int, tuple[Header, list[Pass]]] = {}
    traces: list[Trace] = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                _take(json.loads(line), begun, traces)
        except (LookupError, TypeError, ValueError, RecursionError, RoleError) as error:
            told = format_validation_error(error) if isinstance(error, ValidationError) else first_line(error)
            raise DataError(f"trace {path}, line {number}: no line of a trace ({told}).") from None
    if begun:
        raise DataError(f"trace {path}: row {min(begun)} has no end line; it was cut short. Record it again.")
    if not traces:
        raise DataError(f"trace {path}: empty. Write a trace with generate --trace FILE.")
    return traces


def _take(record: dict[str, Any], begun: dict[int, tuple[Header, list[Pass]]], traces: list[Trace]) -> None:
    """Add one line to the rows that have begun, or, if it is the last of its row, to the traces."""
    kind, row = record["type"], record["row"]
    if kind == "header":
        if record["version"] != VERSION:
            raise ValueError(
                f"version {record['version']}; this release reads version {VERSION}: record it again"
            )
        begun[row] = (_HEADER.validate_python(record), [])
    elif kind == "pass":
        begun[row][1].append(_PASS.validate_python(record))
    elif kind == "end":
        end = _END.validate_python(record)
        header, passes = begun.pop(row)
        traces.append(Trace(row, header, tuple(passes), end.result, end.pieces))
    else:
        raise ValueError(f"type {kind!r}")
