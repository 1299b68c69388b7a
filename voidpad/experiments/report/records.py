"""Run folders and sweep folders -> records: one finished task of one run each, with its coordinates."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voidpad.errors import DataError

VERSION = 1


@dataclass(frozen=True)
class Record:
    """A task of a run. `at` holds every field of its plan; `result` is the task's part of results.json.

    A cell of a sweep that has not finished is a record without a result, so that no mean is taken without it.
    """

    folder: str
    model: str
    method: str
    task: str
    at: Mapping[str, Any]
    result: Mapping[str, Any]
    settings: Mapping[str, Any]  # of config.json
    provenance: Mapping[str, Any]
    wall: float | None  # None: several tasks shared the run, so none has a wall time of its own

    @property
    def done(self) -> bool:
        return bool(self.result)

    def get(self, name: str) -> Any:
        """A coordinate by name: model, method, task or a setting."""
        fixed = {"model": self.model, "method": self.method, "task": self.task}
        beside = {**fixed, "cache": self.settings.get("cache")}  # what is not in the plan
        return beside[name] if name in beside else self.at.get(name)

    def graded(self, grader: str) -> "Record":
        """The same generations under another grader of the task; tasks without it keep their own."""
        if grader not in self.result.get("scores", {}):
            return self
        return replace(self, result={**self.result, **self.result["scores"][grader], "filter": grader})

    def matches(self, where: Mapping[str, Any]) -> bool:
        return all(self.get(name) in _listed(value) for name, value in where.items())


@dataclass(frozen=True)
class Sweep:
    """A NAME.sweep.json beside the cells: which folder is which row, and the tables that were asked for."""

    title: str
    cells: Sequence[Mapping[str, Any]]
    tables: Sequence[Mapping[str, Any]]
    figures: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """One sweep, or run folders without one."""

    name: str
    records: tuple[Record, ...]
    sweep: Sweep | None = field(default=None)


SUFFIX = ".sweep.json"


def read(path: Path) -> list[Source]:
    """A folder of sweeps, one NAME.sweep.json, a run folder, or a folder of run folders."""
    sweeps = [path] if path.name.endswith(SUFFIX) else sorted(path.glob(f"*{SUFFIX}"))
    if sweeps:
        return [_read_sweep(sweep) for sweep in sweeps]
    own = [path] if (path / "config.json").is_file() else []
    runs = own or sorted(config.parent for config in path.glob("*/config.json"))
    if not runs:
        raise DataError(f"{path}: no run here; give a folder written by `voidpad eval` or `voidpad sweep`.")
    return [_source(path.name, [(run, {}) for run in runs], None)]


def _read_sweep(path: Path) -> Source:
    raw = load(path)
    sweep = Sweep(raw["title"], raw["cells"], raw["tables"], raw["figures"])
    runs = [(path.parent / cell["folder"], cell) for cell in sweep.cells]
    return _source(path.name.removesuffix(SUFFIX), runs, sweep)


def _source(name: str, runs: Iterable[tuple[Path, Mapping[str, Any]]], sweep: Sweep | None) -> Source:
    records: list[Record] = []
    for run, labels in runs:
        if (run / "results.json").is_file():
            records += records_of(run, labels)
        elif sweep:
            records.append(pending(run, labels))
    return Source(name, tuple(records), sweep)


def pending(run: Path, labels: Mapping[str, Any]) -> Record:
    """A cell that is still to run: its coordinates, and nothing measured."""
    coordinates = (labels["model"], labels["method"], labels["task"], labels["at"])
    return Record(run.name, *coordinates, result={}, settings=labels["settings"], provenance={}, wall=None)


def records_of(run: Path, labels: Mapping[str, Any]) -> list[Record]:
    """The finished tasks of one run folder; a sweep's `labels` name its row, else the settings do."""
    config, results = load(run / "config.json"), load(run / "results.json")
    settings = config["settings"]
    alone = len(results["tasks"]) == 1
    records = [
        Record(
            folder=run.name,
            model=labels.get("model") or model_label(settings),
            method=labels.get("method") or method_label(settings),
            task=task,
            at=settings["plan_resolved"],
            result=result,
            settings=settings,
            provenance=results["provenance"],
            wall=results["wall_seconds"] if alone else None,
        )
        for task, result in results["tasks"].items()
    ]
    # A run that reads canvases as the paper's harness does is graded as the paper graded.
    return [record.graded("authors") for record in records] if settings["parity"] else records


def load(path: Path) -> dict[str, Any]:
    """A JSON file of ours; a damaged or newer one is named."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        version = raw["version"]
    except FileNotFoundError:
        raise DataError(f"{path}: missing; run the evaluation again to write it.") from None
    except (ValueError, TypeError, KeyError) as fault:
        raise DataError(f"{path}: damaged ({fault}); delete the run folder and run it again.") from None
    if version != VERSION:
        raise DataError(
            f"{path}: format version {version}, this release reads {VERSION}; use a matching voidpad."
        )
    return raw


def model_label(settings: Mapping[str, Any]) -> str:
    adapter = settings.get("adapter")
    return settings["model"] + (f" + {adapter}" if adapter else "")


METHOD = ("stop", "ban", "threshold", "factor", "trim", "cache", "quantize")


def method_label(settings: Mapping[str, Any]) -> str:
    """The preset, with the rules that were replaced in it and what approximates it: another method each."""
    given = {**settings["fields"], **{name: settings.get(name) for name in ("cache", "quantize")}}
    changed = [f"{name}={given[name]}" for name in METHOD if given.get(name) is not None]
    return " ".join([settings["plan"].removesuffix("@authors"), *changed])


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]
