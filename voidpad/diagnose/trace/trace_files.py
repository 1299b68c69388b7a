"""Trace files: written beside and renamed, read with every line checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from voidpad.diagnose.trace.format import VERSION, End, Header, Pass, Trace
from voidpad.errors import DataError, RoleError
from voidpad.files import store
from voidpad.roles import Roles

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


def _line(record: dict[str, Any]) -> str:
    """One line of the file: ASCII, so that no reader can trip over a line separator inside a token's text."""
    return json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"


def write(path: Path | str, traces: Iterable[Trace]) -> None:
    store(Path(path), (_line(record) for trace in traces for record in records(trace)))


def read(path: Path | str) -> list[Trace]:
    """Every row of a trace file, checked: a damaged or foreign file is a DataError that names the line."""
    rows: dict[int, _TraceRow] = {}
    for number, record in _records(Path(path)):
        try:
            _take(rows, record)
        except ValidationError as error:
            raise DataError(f"trace {path}, line {number}: {_first_fault(error)}.") from None
        except (ValueError, RoleError) as error:
            raise DataError(f"trace {path}, line {number}: {error}") from None
    if not rows:
        raise DataError(f"trace {path}: empty. Write a trace with generate --trace FILE.")
    return [_finish(row, path) for row in rows.values()]


@dataclass
class _TraceRow:
    """A row while its lines come in."""

    row: int
    header: Header
    passes: list[Pass] = field(default_factory=list)
    end: End | None = None

    @property
    def next(self) -> int:
        return self.passes[-1].n + 1 if self.passes else 0


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"trace {path}: cannot be read ({error.strerror}).") from None
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise DataError(f"trace {path}, line {number}: not JSON; damaged, or not a trace.") from None
        if not isinstance(record, dict) or not isinstance(record.get("row"), int):
            raise DataError(f"trace {path}, line {number}: no row number; this is not a trace line.")
        yield number, record


def _take(rows: dict[int, _TraceRow], record: dict[str, Any]) -> None:
    kind, row = record.get("type"), record["row"]
    if kind == "header":
        if record.get("version") != VERSION:
            raise ValueError(f"version {record.get('version')!r}; this release reads version {VERSION}.")
        if row in rows:
            raise ValueError(f"a second header for row {row}.")
        rows[row] = _TraceRow(row, _HEADER.validate_python(record))
        return
    if row not in rows or rows[row].end:
        raise ValueError(f"{kind!r} for row {row!r} outside its header and end lines.")
    takers: dict[str, Callable[[_TraceRow, dict[str, Any]], None]] = {"pass": _take_pass, "end": _take_end}
    if not isinstance(kind, str) or kind not in takers:
        raise ValueError(f"line type {kind!r}; a trace has header, pass and end.")
    takers[kind](rows[row], record)


def _take_pass(row: _TraceRow, record: dict[str, Any]) -> None:
    step = _PASS.validate_python(record)
    if step.n != row.next:
        raise ValueError(f"row {row.row} jumps to pass {step.n}; pass {row.next} is missing.")
    row.passes.append(step)


def _take_end(row: _TraceRow, record: dict[str, Any]) -> None:
    result = record.get("result")
    if isinstance(
        result, dict
    ):  # earlier releases wrote no key, another name for approximations, and null for no time
        known = {name: value for name, value in result.items() if value is not None}
        earlier = {"key": row.row, "approximations": known.pop("accelerated", ())}
        record = {**record, "result": earlier | known}
    row.end = _END.validate_python(record)


def _finish(row: _TraceRow, path: Path | str) -> Trace:
    """The row as a value, after replaying it: commits, edits and counts must tell one story."""
    if row.end is None:
        raise DataError(
            f"trace {path}: row {row.row} has no end line, the file was cut short. Record it again."
        )
    trace = Trace(row.row, row.header, tuple(row.passes), row.end.result, row.end.pieces)
    try:
        for step, canvas in zip(trace.passes, trace.canvases(), strict=True):
            _agree(step, canvas, row.header.roles)
    except ValueError as error:
        raise DataError(f"trace {path}: row {row.row} is damaged: {error}.") from None
    return trace


def _agree(step: Pass, canvas: np.ndarray, roles: Roles) -> None:
    ends = np.flatnonzero(canvas == roles.eos)
    masks, first = int((canvas == roles.mask).sum()), int(ends[0]) if len(ends) else None
    if (step.masks, step.first_eos) != (masks, first):
        stated = f"{step.masks} masks, first EOS {step.first_eos}"
        raise ValueError(f"pass {step.n} says {stated}; its commits leave {masks}, {first}")


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}" if where else fault["msg"]
