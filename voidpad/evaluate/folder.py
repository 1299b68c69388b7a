"""The run folder on disk: what is in it, how it is written, how it is read back."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel

from voidpad.errors import ConfigError, DataError, reason
from voidpad.evaluate.file_shapes import (
    RunConfig,
    RunExample,
    RunResults,
    StoredRequest,
    StoredSettings,
    check_shape,
    read_json_lines,
)
from voidpad.evaluate.journal import Journal
from voidpad.evaluate.settings import RESOLVED, Settings, first_difference, settings_digest
from voidpad.files import store

VERSION = 2  # of every JSON file here and of NAME.sweep.json
_START_AGAIN = "delete the run folder and run it again"
READABLE = (1, 2)  # version 1 had no requests.jsonl, and no weights in its settings


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """One prompt of one task, as *prepare* writes it and *answer* reads it."""

    name: str  # task:index, or task:index:repeat
    prompt: str
    stop: tuple[str, ...] = ()  # the answer's text ends before the first of these
    gold: Any = None  # the right answer, for whoever reads the files; only the graders decide
    rendered: bool = False  # the chat template is in the prompt already

    @property
    def key(self) -> int:
        """The row's key for random draws. It depends on the name alone, so a resumed or sharded run draws the same."""
        return int.from_bytes(sha256(self.name.encode()).digest()[:8], "big") >> 2

    @property
    def prompt_sha256(self) -> str:
        return sha256(self.prompt.encode()).hexdigest()


@dataclass
class RunFolder:
    """A run folder. Every property reads its file anew."""

    path: Path
    _locked: bool = field(default=False, repr=False)

    @property
    def config(self) -> dict[str, Any]:
        return read_versioned(self.path / "config.json", RunConfig)

    @property
    def stored_settings(self) -> dict[str, Any]:
        """The settings of config.json as they are written there, with the resolved plan."""
        settings: dict[str, Any] = self.config["settings"]
        check_shape(StoredSettings, settings, f"{self.path / 'config.json'}: settings", _START_AGAIN)
        return settings

    @property
    def settings(self) -> Settings:
        return Settings.parse(self.stored_settings)

    @property
    def requests(self) -> list[AnswerRequest]:
        path = self.path / "requests.jsonl"
        if not path.is_file():
            raise DataError(f"{path}: missing; run `voidpad eval --stage prepare` first")
        requests, fix = [], "prepare the run again"
        for number, fields in read_json_lines(path, fix):
            check_shape(StoredRequest, fields, f"{path}:{number}", fix)
            requests.append(AnswerRequest(**{**fields, "stop": tuple(fields["stop"])}))
        return requests

    @property
    def journal(self) -> Journal:
        return Journal(self.path / "progress.jsonl")

    @property
    def examples(self) -> list[dict[str, Any]]:
        """The scored examples; none until the run was judged."""
        path, fix = self.path / "examples.jsonl", "judge the run again"
        if not path.exists():
            return []
        lines = list(read_json_lines(path, fix))
        for number, example in lines:
            check_shape(RunExample, example, f"{path}:{number}", fix)
        return [example for _, example in lines]

    @property
    def results(self) -> dict[str, Any] | None:
        """The content of results.json; None until the run is complete."""
        return read_versioned(self.path / "results.json", RunResults) if self.complete else None

    @property
    def complete(self) -> bool:
        return (self.path / "results.json").is_file()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One process writes a run at a time. The folder is made; the same object may nest this."""
        if self._locked:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            _lock(file, self.path)
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def begin(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Write config.json. Once there is an answer, other settings are refused by name.

        Weights and the resolved plan may be unknown where requests are prepared: what is known stays.
        """
        path, known = self.path / "config.json", {}
        if path.exists() and self.config["version"] < VERSION:
            raise ConfigError(f"{self.path}: a run of an older voidpad cannot go on; use another --out")
        if path.exists() and self.journal.records:
            known = self.config
            fixed = {name: known["settings"].get(name) for name in ("weights", RESOLVED)}
            settings = {**settings, **{k: v for k, v in fixed.items() if v and not settings.get(k)}}
            there = known["settings"]
            if name := first_difference(there, settings):
                raise ConfigError(
                    f"{path}: a run with {name}={there.get(name)!r}, now {settings.get(name)!r}; use another --out"
                )
        facts = {**provenance, **known.get("provenance", {})}
        self._write_config(settings, facts)

    def note(self, provenance: Mapping[str, Any]) -> None:
        """Add facts of a later stage to config.json's provenance."""
        config = self.config
        self._write_config(config["settings"], {**config["provenance"], **provenance})

    def _write_config(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        digest = settings_digest(settings)
        head = {"version": VERSION, "settings": settings, "fingerprint": digest, "provenance": provenance}
        write_lines(self.path / "config.json", [json.dumps(head, indent=1)])

    def write_requests(self, requests: Iterable[AnswerRequest]) -> None:
        lines = (json.dumps(asdict(request), default=str) for request in requests)
        write_lines(self.path / "requests.jsonl", lines)


def read_run(folder: Path) -> RunFolder:
    """A run folder to read; a folder that holds no run is refused here."""
    run = RunFolder(Path(folder))
    run.config  # noqa: B018  a missing or damaged file is named now
    return run


def read_versioned(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """A JSON file of ours; a missing, damaged or newer one is named."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = content["version"]
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing; run the evaluation, or its first stage (--stage prepare), to write it."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path}: damaged ({reason(error)}); {_START_AGAIN}.") from None
    if version not in READABLE:
        raise DataError(
            f"{path}: format version {str(version)[:40]}, this release reads {READABLE[-1]}; "
            "use a matching voidpad."
        )
    check_shape(shape, content, f"{path}: damaged", _START_AGAIN)
    return content


def write_lines(path: Path, lines: Iterable[str]) -> None:
    store(path, (line + "\n" for line in lines))


def _lock(file: IO[str], folder: Path) -> None:
    """Take the lock, or say who has it. The system releases it when the process dies."""
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"{folder}: another process is writing this run; use another --out") from None
