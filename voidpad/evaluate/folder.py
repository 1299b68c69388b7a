"""The run folder on disk: what is in it, how it is written, how it is read back."""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError
from voidpad.evaluate.journal import Journal
from voidpad.evaluate.settings import fingerprint
from voidpad.files import store

VERSION = 1


@dataclass(frozen=True)
class Run:
    """A run folder's content; `results` is None until the run is complete."""

    config: dict[str, Any]
    examples: list[dict[str, Any]]
    results: dict[str, Any] | None


def read_run(folder: Path) -> Run:
    results, examples = folder / "results.json", folder / "examples.jsonl"
    return Run(
        config=_object(folder / "config.json"),
        examples=[json.loads(line) for line in examples.read_text().splitlines()]
        if examples.exists()
        else [],
        results=_object(results) if results.exists() else None,
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a run folder's file ({error})") from error
    if found.get("version") != VERSION:
        raise DataError(f"{path}: version {found.get('version')} is unknown; this voidpad reads {VERSION}")
    return found


@contextmanager
def writing(folder: Path, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> Iterator[Journal]:
    """The journal of a run with these settings: of a new folder, or of one to go on with. One writer at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when the process dies
        except BlockingIOError:
            raise ConfigError(f"{folder}: another process is writing this run; use another --out") from None
        yield begin(folder, settings, provenance)


def begin(folder: Path, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> Journal:
    """Settings may change until the first example is there."""
    path, journal = folder / "config.json", Journal(folder / "progress.jsonl")
    if path.exists() and journal.records:
        refuse_others(path, _object(path)["settings"], settings)
        return journal
    mark = fingerprint(settings)
    head = {"version": VERSION, "settings": settings, "fingerprint": mark, "provenance": provenance}
    write(path, [json.dumps(head, indent=1)])
    return journal


def refuse_others(path: Path, there: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    for name in sorted({*there, *mine}):
        if there.get(name) != mine.get(name):
            raise ConfigError(
                f"{path}: a run with {name}={there.get(name)!r}, now {mine.get(name)!r}; use another --out"
            )


def write(path: Path, lines: Iterable[str]) -> None:
    store(path, (line + "\n" for line in lines))
