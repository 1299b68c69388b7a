"""Run folders and sweep folders -> records: one finished task of one run each, with its coordinates."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voidpad.decode.switches import APPROXIMATE_FIELDS
from voidpad.errors import DataError
from voidpad.evaluate.file_shapes import SweepFile
from voidpad.evaluate.folder import RunFolder, read_versioned
from voidpad.evaluate.settings import RESOLVED
from voidpad.experiments.report.published import PublishedNumbers

SUFFIX = ".sweep.json"
_BESIDE_THE_PLAN = ("cache", "quantize", "hide_eos")
# Settings that make another method of a preset: replaced rules, and what approximates or changes it.
_REPLACED = (
    "stop",
    "ban",
    "mute",
    "eos_penalty",
    "eos_annealing",
    "position_decay",
    "delimiter_threshold",
    "delimiters",
)
_METHOD = (*_REPLACED, *APPROXIMATE_FIELDS, *_BESIDE_THE_PLAN)


@dataclass(frozen=True)
class CellRecord:
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
    grader: str = ""  # the examples' scores are this grader's; the task's first one if empty
    path: Path = field(default=Path(), compare=False)
    published: PublishedNumbers | None = field(default=None, compare=False, repr=False)

    @property
    def done(self) -> bool:
        return bool(self.result)

    @property
    def title(self) -> str:
        """The model's name in tables: its published title where there is one."""
        known = self.published.models.get(self.model) if self.published else None
        return known.title if known else self.model

    @property
    def examples(self) -> list[dict[str, Any]]:
        """The lines of examples.jsonl, with the score of this record's grader."""
        mine = [one for one in RunFolder(self.path).examples if one["task"] == self.task]
        return [{**one, "score": one["scores"].get(self.grader, one["score"])} for one in mine]

    def get(self, name: str) -> Any:
        """A coordinate by name: model, method, task or a setting."""
        labels = {"model": self.model, "method": self.method, "task": self.task}
        beside = {**labels, **{key: self.settings.get(key) for key in _BESIDE_THE_PLAN}}
        return beside[name] if name in beside else self.at.get(name)

    def graded(self, grader: str) -> "CellRecord":
        """The same generations under another grader of the task; tasks without it keep their own."""
        if grader not in self.result.get("scores", {}):
            return self
        result = {**self.result, **self.result["scores"][grader], "filter": grader}
        return replace(self, result=result, grader=grader)

    def matches(self, where: Mapping[str, Any]) -> bool:
        return all(self.get(name) in _listed(value) for name, value in where.items())


@dataclass(frozen=True)
class Source:
    """One sweep, or run folders without one."""

    name: str
    records: tuple[CellRecord, ...]
    sweep: Mapping[str, Any] | None = None  # NAME.sweep.json: title, cells, tables and figures


def read(path: Path, published: PublishedNumbers | None = None) -> list[Source]:
    """A folder of sweeps, one NAME.sweep.json, a run folder, or a folder of run folders."""
    sweeps = [path] if path.name.endswith(SUFFIX) else sorted(path.glob(f"*{SUFFIX}"))
    if sweeps:
        return [_read_sweep(sweep, published) for sweep in sweeps]
    own = [path] if (path / "config.json").is_file() else []
    runs = own or sorted(config.parent for config in path.glob("*/config.json"))
    if not runs:
        raise DataError(f"{path}: no run here; give a folder written by `voidpad eval` or `voidpad sweep`.")
    return [_source(path.name, [(run, {}) for run in runs], None, published)]


def _read_sweep(path: Path, published: PublishedNumbers | None) -> Source:
    sweep = read_versioned(path, SweepFile)
    runs = [(path.parent / cell["folder"], cell) for cell in sweep["cells"]]
    return _source(path.name.removesuffix(SUFFIX), runs, sweep, published)


def _source(
    name: str,
    runs: Iterable[tuple[Path, Mapping[str, Any]]],
    sweep: Mapping[str, Any] | None,
    published: PublishedNumbers | None,
) -> Source:
    records: list[CellRecord] = []
    for path, labels in runs:
        run = RunFolder(path)
        if run.complete:
            records += _finished(run, labels, published)
        elif sweep:
            coordinates = (labels["model"], labels["method"], labels["task"], labels["at"])
            records.append(
                CellRecord(
                    path.name, *coordinates, {}, labels["settings"], {}, None, path=path, published=published
                )
            )
    return Source(name, tuple(records), sweep)


def _finished(
    run: RunFolder, labels: Mapping[str, Any], published: PublishedNumbers | None
) -> list[CellRecord]:
    """The tasks of one complete run folder; a sweep's `labels` name its row, else the settings do."""
    settings, results = run.stored_settings, run.results
    assert results is not None
    if settings.get(RESOLVED) is None:
        raise DataError(f"{run.path}/config.json: no {RESOLVED} in its settings; run it again.")
    alone = len(results["tasks"]) == 1
    records = [
        CellRecord(
            folder=run.path.name,
            model=labels.get("model") or _model_label(settings),
            method=labels.get("method") or _method_label(settings),
            task=task,
            at=settings[RESOLVED],
            result=result,
            settings=settings,
            provenance=results["provenance"],
            wall=results["wall_seconds"] if alone else None,
            path=run.path,
            published=published,
        )
        for task, result in results["tasks"].items()
    ]
    # A run that reads canvases as the paper's harness does is graded as the paper graded.
    grader = labels.get("grader") or ("authors" if settings.get("parity") else "")
    return [record.graded(grader) for record in records]


def _model_label(settings: Mapping[str, Any]) -> str:
    adapter = settings.get("adapter")
    return str(settings["model"]) + (f" + {adapter}" if adapter else "")


def _method_label(settings: Mapping[str, Any]) -> str:
    """The preset, with the rules that were replaced in it and what approximates it: another method each."""
    given = {**settings["fields"], **{name: settings.get(name) for name in _BESIDE_THE_PLAN}}
    changed = [f"{name}={given[name]}" for name in _METHOD if given.get(name) is not None]
    return " ".join([plan_label(settings).removesuffix("@authors"), *changed])


def plan_label(settings: Mapping[str, Any]) -> str:
    """The name of a run's preset; runs with a plan of the user's own share one label."""
    plan = settings["plan"]
    return plan if isinstance(plan, str) else "own plan"


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]
