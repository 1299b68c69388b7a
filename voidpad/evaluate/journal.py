"""The journal of a run: one line per answer, appended and synced, so that a killed run loses nothing."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from voidpad.decode.outcome import Outcome
from voidpad.errors import DataError, reason
from voidpad.evaluate.file_shapes import StoredAnswer, check_shape


@dataclass(frozen=True, kw_only=True)
class AnswerRecord(Outcome):
    """One generated answer, before any scoring: the finished row, and what belongs to its request."""

    name: str  # of the request: task:index, or task:index:repeat
    prompt_sha256: str  # of the prompt's text
    prompt_tokens: int
    output: str  # the text that is scored
    answer_tokens: int  # before the first end, tokens with a role left out
    eos: bool  # the canvas holds an end
    at_cap: bool  # it holds none, and the plan allows no longer canvas
    attempt: int = 0  # which start of the run made it
    elapsed: float = 0.0  # seconds since that start


class Journal:
    """Append-only. A torn last line, the mark of a kill, is cut off when the journal is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = {record.name: record for record in _read(path)} if path.exists() else {}
        self.attempt = 1 + max((record.attempt for record in self.records.values()), default=-1)

    def append(self, records: Iterable[AnswerRecord]) -> None:
        """The records are safe on disk when this returns."""
        fresh = list(records)
        if not fresh:
            return
        with self.path.open("ab") as file:
            file.write(b"".join(json.dumps(asdict(record)).encode() + b"\n" for record in fresh))
            file.flush()
            os.fsync(file.fileno())
        self.records |= {record.name: record for record in fresh}

    @property
    def wall_seconds(self) -> float:
        """Generation time: for each start, the moment of its last record."""
        ends: dict[int, float] = {}
        for record in self.records.values():
            ends[record.attempt] = max(record.elapsed, ends.get(record.attempt, 0.0))
        return sum(ends.values())


def _read(path: Path) -> list[AnswerRecord]:
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        with path.open("r+b") as file:
            file.truncate(whole)
    records, fix = [], "remove the line and run again"
    for number, line in enumerate(raw[:whole].splitlines(), 1):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number} is damaged ({reason(error)}); {fix}.") from error
        check_shape(StoredAnswer, fields, f"{path}:{number} is damaged", fix)
        records.append(AnswerRecord(**fields))
    return records
