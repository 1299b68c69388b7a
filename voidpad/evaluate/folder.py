"""The run folder on disk: what is in it, how it is written, how it is read back. `evaluate/__init__` has the format.

A folder that a user names is trusted to be what it is; a damaged file gives one line that names it. Files are written
beside and renamed, or appended to; no link is followed for writing, and nothing is cut that another program wrote.
"""

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from voidpad.decode.outcome import Outcome
from voidpad.errors import ConfigError, DataError, shown
from voidpad.evaluate.config import EvalConfig
from voidpad.files import atomic_file, locked_folder, open_own, read_json, readable, store

VERSION = 4  # of every JSON file here and of NAME.sweep.json


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """One prompt of one task."""

    name: str  # task:index, or task:index:repeat
    prompt: str
    stop: tuple[str, ...] = ()  # the answer's text ends before the first of these
    gold: Any = None  # the right answer, for whoever reads the files; only the graders decide
    rendered: bool = False  # the chat template is in the prompt already

    @property
    def task(self) -> str:
        return self.name.rpartition(":")[0]

    @property
    def index(self) -> int:
        """The item's place in the whole test set."""
        return int(self.name.rpartition(":")[2])

    @property
    def key(self) -> int:
        """The row's key for random draws, a positive int64.

        It depends on the name alone, so a resumed or sharded run draws the same.
        """
        return int.from_bytes(sha256(self.name.encode()).digest()[:8], "big") >> 2

    @property
    def prompt_sha256(self) -> str:
        return sha256(self.prompt.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class AnswerRecord(Outcome):
    """One generated answer, before any scoring: the finished row, and what belongs to its request."""

    name: str  # of the request
    prompt_sha256: str  # of the prompt's text
    prompt_tokens: int
    output: str  # the text that is scored
    answer_tokens: int  # before the first end, tokens with a role left out
    eos: bool  # the canvas holds an end
    at_cap: bool  # it holds none, and the plan allows no longer canvas
    attempt: int = 0  # which start of the run made it
    elapsed: float = 0.0  # seconds since that start


class Journal:
    """The answers of a run, in the order in which they ended: progress.jsonl.

    Every record is synced to the disk when `append` returns, so a killed run loses nothing. A torn last line, the mark
    of a kill, is ignored by readers and dropped by the next `append`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = path.read_bytes() if path.exists() else b""
        self._end = raw.rfind(b"\n") + 1  # of the last whole line
        self.records: dict[str, AnswerRecord] = {}
        for number, line in enumerate(raw[: self._end].splitlines(), 1):
            with readable(Path(f"{path}:{number}"), "JSON", DataError):
                record = AnswerRecord(**json.loads(line))
                self.records[record.name] = record
        self.attempt = 1 + max((record.attempt for record in self.records.values()), default=-1)

    def append(self, records: Iterable[AnswerRecord]) -> None:
        fresh = list(records)
        if not fresh:
            return
        with os.fdopen(open_own(self.path), "r+b") as file:
            file.truncate(self._end)  # of a torn last line
            file.seek(self._end)
            file.write(b"".join(json.dumps(asdict(record)).encode() + b"\n" for record in fresh))
            self._end = file.tell()
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


@dataclass
class RunFolder:
    """A run folder. Every property reads its file anew."""

    path: Path

    @property
    def head(self) -> dict[str, Any]:
        """The content of config.json: version, config, plan (every field with its value), provenance."""
        return read_versioned(self.path / "config.json")

    @property
    def config(self) -> EvalConfig:
        try:
            return EvalConfig(**self.head["config"])
        except ConfigError as error:
            raise DataError(f"{self.path / 'config.json'}: {error}; use another --out") from None

    @property
    def requests(self) -> list[AnswerRequest]:
        path = self.path / "requests.jsonl"
        with readable(path, "JSON", DataError):
            lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            return [AnswerRequest(**{**line, "stop": tuple(line["stop"])}) for line in lines]

    @property
    def journal(self) -> Journal:
        return Journal(self.path / "progress.jsonl")

    @property
    def examples(self) -> list[dict[str, Any]]:
        """The scored examples; none until the run was judged."""
        path = self.path / "examples.jsonl.gz"
        if not path.exists():
            return []
        with readable(path, "JSON", DataError):
            return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]

    @property
    def results(self) -> dict[str, Any] | None:
        """The content of results.json; None until the run is complete."""
        return read_versioned(self.path / "results.json") if self.complete else None

    @property
    def complete(self) -> bool:
        return (self.path / "results.json").is_file()

    def writing(self) -> AbstractContextManager[None]:
        """One process writes a run at a time. The folder is made."""
        busy = f"{self.path}: another process is writing this run; use another --out"
        return locked_folder(self.path, busy)

    def begin(
        self,
        config: EvalConfig,
        provenance: Mapping[str, Any],
        plan: Mapping[str, Any] | None = None,
        requests: Iterable[AnswerRequest] | None = None,
    ) -> dict[str, Any]:
        """Write config.json, and the requests where they are given; return the content of the former.

        Once there is an answer, another config is refused, and of plan and provenance what was written first stays.
        """
        head = {"version": VERSION, "config": config.plain(), "plan": plan, "provenance": dict(provenance)}
        if (self.path / "config.json").exists() and self.journal.records:
            known, there = self.head, self.config
            if config.weights is None:
                config = config.updated(weights=there.weights)
            there.require_equal(config, self.path, "use another --out")
            head |= {"config": known["config"], "plan": known["plan"] or plan}
            head["provenance"] = {**provenance, **known["provenance"]}
        self.write_head(head)
        if requests is not None:
            lines = (json.dumps(asdict(request), default=str) + "\n" for request in requests)
            store(self.path / "requests.jsonl", lines)
        return head

    def write_head(self, head: Mapping[str, Any]) -> None:
        store(self.path / "config.json", [json.dumps(head, indent=1), "\n"])

    def write_results(self, examples: Iterable[Mapping[str, Any]], results: dict[str, Any]) -> dict[str, Any]:
        """Write the examples, then the results, which mark a run that is complete; returns the latter."""
        lines = "".join(json.dumps(one) + "\n" for one in examples)
        with atomic_file(self.path / "examples.jsonl.gz") as draft:
            draft.write_bytes(gzip.compress(lines.encode(), mtime=0))
        store(self.path / "results.json", [json.dumps(results, indent=1), "\n"])
        return results


def read_run(folder: Path) -> RunFolder:
    """A run folder to read; a folder that holds no run is refused here."""
    run = RunFolder(Path(folder))
    run.config  # noqa: B018  a missing or damaged file is named now
    return run


def check_answers(
    requests: Iterable[AnswerRequest],
    records: Mapping[str, AnswerRecord],
    where: Path,
    *,
    complete: bool = True,
) -> None:
    """Refuse answers to other prompts under the same names, and missing ones where they should be complete."""
    absent = []
    for request in requests:
        if request.name not in records:
            absent.append(request.name)
        elif records[request.name].prompt_sha256 != request.prompt_sha256:
            raise DataError(f"{where}: {request.name} has another prompt; use another folder")
    if complete and absent:
        raise DataError(
            f"{where}: {len(absent)} items have no answer, the first is {absent[0]}; run `voidpad eval --stage answer`"
        )


def read_versioned(path: Path) -> dict[str, Any]:
    """The content of a JSON file of this release's format."""
    content = read_json(path, DataError)
    if (version := content.get("version")) != VERSION:
        raise DataError(
            f"{path}: format version {shown(version)}, this release reads {VERSION}; use the voidpad that wrote it."
        )
    return content
