"""Run folders and sweep folders -> one DataFrame with a row for each task of each run.

Columns: `model`, `method`, `task`, `grader`, the recipe's labels; `plan.*` (every field of the plan) and `config.*`
(every field of `EvalConfig`); the metrics of `METRICS`, `n`, `test_size`, `correct`; `examples` (n of how many); and
the objects `provenance` and `scores` (by grader). A cell of a sweep that has not finished is a row without numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from voidpad.decode.presets import APPROXIMATE_FIELDS
from voidpad.errors import DataError
from voidpad.evaluate.folder import RunFolder, read_versioned
from voidpad.evaluate.intervals import Interval, mean_of_tasks, wilson
from voidpad.experiments.report.layout import METRICS, SUFFIX, FigureLayout, TableLayout
from voidpad.files import readable

# Fields that make another method of a preset: replaced rules, and what approximates or changes it.
_REPLACED = ("stop", "ban", "mute", "eos_penalty", "eos_annealing", "position_decay")
_BESIDE_THE_PLAN = ("cache", "quantize", "hide_eos")


# ---------------------------------------------------------------------------------------------------- reading folders
@dataclass(frozen=True)
class Source:
    """The runs of one sweep with what its recipe wants to see, or run folders without a recipe."""

    name: str
    frame: pd.DataFrame
    title: str = ""  # empty for runs without a recipe
    tables: Sequence[TableLayout] = ()
    figures: Sequence[FigureLayout] = ()


def frame(folders: Iterable[Path]) -> pd.DataFrame:
    """The runs of all folders, each task of a run once."""
    frames = [source.frame for folder in folders for source in read(folder)]
    return pd.concat(frames, ignore_index=True).drop_duplicates(["path", "task"], ignore_index=True)


def read(path: Path) -> list[Source]:
    """The sources of a folder of sweeps, one NAME.sweep.json, a run folder, or a folder of run folders."""
    if sweeps := [path] if path.name.endswith(SUFFIX) else sorted(path.glob(f"*{SUFFIX}")):
        return [_read_sweep(sweep) for sweep in sweeps]
    inside = sorted(config.parent for config in path.glob("*/config.json"))
    runs = [RunFolder(run) for run in ([path] if (path / "config.json").is_file() else inside)]
    if not runs:
        raise DataError(f"{path}: no run here; give a folder written by `voidpad eval` or `voidpad sweep`.")
    return [Source(path.name, _table(row for run in runs if run.complete for row in _rows(run, {})))]


def _read_sweep(path: Path) -> Source:
    sweep = read_versioned(path)
    with readable(path, "JSON", DataError):
        cells = [(RunFolder(path.parent / cell["folder"]), cell) for cell in sweep["cells"]]
        rows = [row for run, cell in cells for row in _rows(run, cell)]
        tables = [TableLayout(**layout) for layout in sweep["tables"]]
        figures = [FigureLayout(**layout) for layout in sweep["figures"]]
        return Source(path.name.removesuffix(SUFFIX), _table(rows), sweep["title"], tables, figures)


def _table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Numbers as numbers, also where no run has finished; everything else as it is in the files."""
    found = pd.DataFrame(list(rows), dtype=object)
    for name in (*METRICS, "n", "test_size", "correct"):
        if name not in ("tokens_per_pass", "speedup"):  # these are computed from several rows
            found[name] = pd.to_numeric(found[name]) if name in found else float("nan")
    return found


def _rows(run: RunFolder, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each task of a run. A sweep's `cell` names the row, and describes a run that has not finished."""
    results = run.results
    head = run.head if results else cell
    config = head["config"]
    named = {
        "path": str(run.path),
        "model": cell.get("model") or " + ".join(filter(None, (config["model"], config["adapter"]))),
        "method": cell.get("method") or _method_label(config),
        # A run that reads canvases as the paper's harness does is graded as the paper graded.
        "grader": cell.get("grader") or ("authors" if config["parity"] else ""),
        **cell.get("labels", {}),
        **{f"plan.{name}": value for name, value in head["plan"].items()},
        **{f"config.{name}": value for name, value in config.items()},
    }
    if results is None:
        return [{**named, "task": config["tasks"][0]}]
    rows = []
    with readable(run.path / "results.json", "JSON", DataError):
        facts = results["provenance"]
        # An adaptive length has no number of passes to the end of its canvas.
        steps = head["plan"].get("steps") if facts["one_length"] else None
        for task, found in results["tasks"].items():
            scores = {name: one["correct"] for name, one in found["scores"].items()}
            n, size, nfe = found["n"], found["test_size"], found["passes_decode"]
            row = {
                **named,
                "task": task,
                "provenance": facts,
                "n": n,
                "test_size": size,
                "examples": str(n) if n == size else f"{n} of {size}",
                "scores": scores,
                **_score(scores, n, named["grader"] if named["grader"] in scores else found["filter"]),
                "nfe": nfe,
                "nfe_reduction": 100 * (1 - nfe / steps) if steps else None,
                "probes": found["passes_probe"],
                "passes": found["passes_total"],
                "canvas": found["canvas"],
                "answer": found["answer_tokens"],
                "slot_passes": found["slot_passes"],
                "at_cap": 100 * found["share_at_cap"],
                "without_eos": 100 * found["share_without_eos"],
                # Tasks that shared a run have no wall time of their own.
                "wall": results["wall_seconds"] if len(results["tasks"]) == 1 else None,
            }
            rows.append(row)
    return rows


def _score(scores: Mapping[str, float], n: int, grader: str) -> dict[str, Any]:
    return {"filter": grader, "correct": scores[grader], "score": 100 * scores[grader] / n}


def graded(rows: pd.DataFrame, grader: str) -> pd.DataFrame:
    """The same generations under another grader of their tasks; a task without it keeps its own."""
    rows = rows.copy()
    for at, row in rows[rows["n"].notna()].iterrows():
        if grader in row["scores"]:
            for name, value in {"grader": grader, **_score(row["scores"], row["n"], grader)}.items():
                rows.at[at, name] = value
    return rows


def _method_label(config: Mapping[str, Any]) -> str:
    """The preset, with the rules that were replaced in it and what approximates it: another method each."""
    given = {**config["fields"], **{name: config[name] or None for name in _BESIDE_THE_PLAN}}
    names = (*_REPLACED, *APPROXIMATE_FIELDS, *_BESIDE_THE_PLAN)
    changed = [f"{name}={given[name]}" for name in names if given.get(name) is not None]
    return " ".join([plan_label(config["plan"]).removesuffix("@authors"), *changed])


def plan_label(plan: Any) -> str:
    """The name of a run's preset; runs with a plan of the user's own share one label."""
    return plan if isinstance(plan, str) else "own plan"


def verdicts(row: Mapping[str, Any]) -> dict[int, float]:
    """The score of every example of a row by its index, by the grader of the row."""
    examples = RunFolder(Path(row["path"])).examples
    mine = [one for one in examples if one["task"] == row["task"]]
    return {one["index"]: one["scores"].get(row["grader"], one["score"]) for one in mine}


# -------------------------------------------------------------------------------------------------- choosing, combining
def column(rows: pd.DataFrame, name: str) -> pd.Series[Any]:
    """A column by the name that layouts use; lists become texts, so that values can be compared.

    `setting` is the plan fields that differ between the rows, as text.
    """
    values: list[Any] | None = None
    if name == "setting":
        plans = {full[5:]: column(rows, full) for full in rows if full.startswith("plan.")}
        moving = {field: found for field, found in plans.items() if found.nunique() > 1}
        values = [
            ", ".join(f"{field}={found[at]}" for field, found in moving.items() if not pd.isna(found[at]))
            for at in rows.index
        ]
        return pd.Series(values, index=rows.index, dtype=object)
    for full in (name, f"plan.{name}", f"config.{name}"):
        # Names of metrics are names of plan fields too (`canvas`, `score`), and layouts mean the plan's.
        if full in rows and full not in METRICS:
            values = [str(value) if isinstance(value, (list, dict)) else value for value in rows[full]]
            break
    return pd.Series(values, index=rows.index, dtype=object)


def select(rows: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have the value, or one of the values, of every column named."""
    for name, value in where.items():
        rows = rows[column(rows, name).isin(value if isinstance(value, (list, tuple)) else [value])]
    return rows


def ordered(values: Iterable[Any]) -> list[Any]:
    """Distinct values: numbers ascending, anything else as first met."""
    distinct = list(dict.fromkeys(values))
    return sorted(distinct) if all(isinstance(value, (int, float)) for value in distinct) else distinct


@dataclass(frozen=True)
class Value:
    """One cell: the number, its interval where it is a share of examples, and its place in its column."""

    number: float | None = None
    decimals: int = 2
    interval: Interval | None = None
    place: int = 0  # 1 best, 2 second best
    blank: bool = False  # there is nothing to measure here

    @property
    def text(self) -> str:
        if self.number is None:
            return "" if self.blank else "–"
        return f"{self.number:.{self.decimals}f}"


def combined(rows: pd.DataFrame, name: str, task_count: int = 1) -> Value:
    """A metric over runs: averaged over the runs of a task, then unweighted over tasks.

    Unknown until every run has finished, and while there are fewer tasks than `task_count`.
    """
    metric = METRICS[name]
    if name == "tokens_per_pass":
        answer, nfe = (combined(rows, part, task_count).number for part in ("answer", "nfe"))
        return Value(answer / nfe if answer is not None and nfe else None, metric.decimals)
    groups = [group for _, group in rows.groupby("task", sort=False)]
    if len(groups) < task_count or rows[name].isna().any():
        return Value(decimals=metric.decimals)
    means = [fmean(group[name]) for group in groups]
    interval = None
    if name == "score":
        interval = mean_of_tasks(list(zip(means, map(_wilson, groups), strict=True)))
    return Value(metric.combine(means), metric.decimals, interval)


def _wilson(rows: pd.DataFrame) -> Interval:
    """Of one task. Runs averaged over the same examples spread no wider than one run of that mean."""
    size = int(rows["n"].min())
    low, high = wilson(fmean(rows["correct"] / rows["n"]) * size, size)
    return 100 * low, 100 * high
