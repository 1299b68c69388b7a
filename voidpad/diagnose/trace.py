"""Traces: what a decode did, pass by pass. `Recorder` makes them from an engine's events; `write` and `read` keep them.

A file holds JSON lines: for every row one header, one line per pass and one end line; arrays are base64. Slots count
from 0 at the first canvas slot. `length` is the canvas during the pass; a pass's commits apply first, then its edits in
order, and `masks` and `first_eos` describe the canvas after both.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
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
from torch import Tensor

from voidpad.decode.loop import Step
from voidpad.decode.outcome import Result
from voidpad.decode.plan import Plan
from voidpad.decode.rows import EditKind, Rows
from voidpad.engine.events import Event, Finished, Wrote
from voidpad.errors import DataError, RoleError, first_line, format_validation_error
from voidpad.files import readable, store
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.models import Model

VERSION = 2
Detail = Literal["commits", "probs", "top5"]
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

    def named(self) -> set[int]:
        """The tokens that the pass names."""
        tokens = {token for _, token, _ in self.commits} | {
            edit.id for edit in self.edits if edit.id is not None
        }
        return tokens if self.top5_ids is None else tokens | set(self.top5_ids.tolist()) - {-1}

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

_LINES: dict[str, TypeAdapter[Any]] = {
    "header": TypeAdapter(Header),
    "pass": TypeAdapter(Pass),
    "end": TypeAdapter(End),
}


def record(row: int, part: Header | Pass | End) -> dict[str, Any]:
    """A part of a row's trace as the object of its line."""
    kind = type(part).__name__.lower()
    fields = _LINES[kind].dump_python(part, mode="json")
    if isinstance(part, Header):
        fields = {"version": VERSION, **fields, "roles": part.roles.stored()}
    elif isinstance(part, Pass):
        fields = {name: value for name, value in fields.items() if value is not None or name == "first_eos"}
    return {"type": kind, "row": row, **fields}


def records(trace: Trace) -> Iterator[dict[str, Any]]:
    """The trace as the objects of its lines."""
    yield record(trace.row, trace.header)
    for step in trace.passes:
        yield record(trace.row, step)
    yield record(trace.row, End(trace.result, trace.pieces))


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
    begun: dict[int, tuple[Header, list[Pass]]] = {}  # by row
    traces: list[Trace] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            kind, row = found["type"], found["row"]
            if kind == "header" and found["version"] != VERSION:
                raise ValueError(f"version {found['version']}; this release reads version {VERSION}")
            part = _LINES[kind].validate_python(found)
            if kind == "header":
                begun[row] = (part, [])
            elif kind == "pass":
                begun[row][1].append(part)
            else:
                header, passes = begun.pop(row)
                traces.append(Trace(row, header, tuple(passes), part.result, part.pieces))
        except (LookupError, TypeError, ValueError, RecursionError, RoleError) as error:
            told = format_validation_error(error) if isinstance(error, ValidationError) else first_line(error)
            raise DataError(
                f"trace {path}, line {number}: no line of a trace ({told}); record it again."
            ) from None
    if begun:
        raise DataError(f"trace {path}: row {min(begun)} has no end line; it was cut short. Record it again.")
    if not traces:
        raise DataError(f"trace {path}: empty. Write a trace with generate --trace FILE.")
    return traces


class Recorder:
    """A listener for an engine's events that makes a trace of every row that ends.

    Give it to `Model.generate` or `Model.stream` as `listen`, and its `observe` as `observe`. A trace stays in memory
    until it is written: 512 slots and passes take 1.5 MB as probs, 9 MB as top5.

    Observing must not change an answer. A cache recomputes no more than the block, so under a cache the recorder asks
    for no logits of its own: the trace holds those that decoding needed, and its header says `recorded: block`.
    """

    def __init__(
        self,
        model: Model,
        *,
        plan_name: str,
        seed: int = 0,
        detail: Detail = "probs",
        cache: str | None = None,
    ) -> None:
        self.model, self.detail, self.cache = model, detail, cache
        self.about: dict[str, Any] = {
            "plan_name": plan_name,
            "seed": seed,
            "recorded": "block" if cache else "canvas",
        }
        self.rows: dict[int, tuple[Plan, Header, list[Pass]]] = {}  # by handle, while they are decoded
        self.traces: list[Trace] = []

    def observe(self, canvas: Rows) -> Tensor:
        """The slots whose logits the record needs besides those that decoding needs."""
        if self.detail == "commits" or self.cache:
            return torch.zeros_like(canvas.slots)
        return canvas.slots

    def __call__(self, event: Event) -> None:
        if isinstance(event, Wrote):
            canvas = event.step.before
            for row, handle in enumerate(event.handles):
                if handle not in self.rows:
                    self.rows[handle] = (event.plan, self.header_of(event.plan, canvas, row), [])
                passes = self.rows[handle][2]
                passes.append(self.pass_of(event.plan, event.step, row, len(passes)))
        elif isinstance(event, Finished) and event.handle in self.rows:
            plan, header, passes = self.rows.pop(event.handle)
            result = self.model.result(event.outcome, plan, cache=self.cache)
            named = {*header.prompt.ids, *header.template, *result.ids}.union(
                *(step.named() for step in passes)
            )
            pieces = {token: str(self.model.tokenizer.decode([token])) for token in sorted(named)}
            self.traces.append(Trace(result.key, header, tuple(passes), result, pieces))

    def write(self, path: Path | str) -> None:
        """Every finished row, in the order of the prompts."""
        write(path, sorted(self.traces, key=lambda trace: trace.row))

    def pass_of(self, plan: Plan, step: Step, row: int, n: int) -> Pass:
        """What one row did in its pass number `n`."""
        before, roles = step.before, step.before.roles
        ids = np.array(step.after.answer(row), dtype=np.int64)
        start, length = int(before.block_start[row] - before.prompt[row]), len(before.answer(row))
        phase: Phase = "decode"
        if before.probing[row]:
            phase = "shared" if step.after.shared[row] > before.shared[row] else "probe"
        # A rule that watched no slot of this row read nothing.
        read = step.signal if plan.length.watch(before)[row].any() else {}
        ends = np.flatnonzero(ids == roles.eos)
        return Pass(
            n=n,
            phase=phase,
            length=length,
            open=start,
            window=max(0, min(plan.block, length - start)),
            commits=tuple(step.written(row)),
            forced=step.forced(row),
            edits=tuple(Edit(*edit) for edit in step.edits_of(row)),
            masks=int((ids == roles.mask).sum()),
            first_eos=int(ends[0]) if len(ends) else None,
            signal={name: float(values[row]) for name, values in read.items()},
            **self._arrays(step, row),
        )

    def _arrays(self, step: Step, row: int) -> dict[str, np.ndarray]:
        if self.detail == "commits":
            return {}
        canvas = step.before
        start, length = int(canvas.prompt[row]), len(canvas.answer(row))
        mine = canvas.slots[step.where] & (step.where.nonzero()[:, 0] == row)
        slots = (step.where[row] & canvas.slots[row]).nonzero()[:, 0] - start
        p = step.logits[mine.to(step.logits.device)].float().softmax(-1)
        best = p.topk(5 if self.detail == "top5" else 1)
        read = {"p_eos": p[:, canvas.roles.eos], "top": best.values[:, 0]}
        if canvas.roles.void is not None:
            read["p_void"] = p[:, canvas.roles.void]
        if self.detail == "top5":
            read |= {"top5_ids": best.indices, "top5_p": best.values}
        arrays: dict[str, np.ndarray] = {}
        for name, values in read.items():
            empty = -1 if name == "top5_ids" else torch.nan
            whole = torch.full((length, *values.shape[1:]), empty, dtype=values.dtype)
            whole[slots] = values.cpu()
            arrays[name] = whole.flatten().numpy()
        return arrays

    def header_of(self, plan: Plan, canvas: Rows, row: int) -> Header:
        """What a row's trace says before its first pass, from the canvas of that pass."""
        prompt = canvas.ids[row, : int(canvas.prompt[row])].tolist()
        return Header(
            model=self.model.name,
            family=self.model.family.name,
            roles=canvas.roles,
            prompt=Prompt(str(self.model.tokenizer.decode(prompt)), tuple(prompt)),
            plan=plan.plain(),
            detail=self.detail,
            template=tuple(canvas.answer(row)) if plan.fill else (),
            **self.about,
        )
