"""Run folders and sweep folders -> one DataFrame with a row for each task of each run.

Columns: `model`, `method`, `task`, `grader`, the recipe's labels; `plan.*` (every field of the plan) and `config.*`
(every field of `EvalConfig`); the metrics of `METRICS`, `n`, `test_size`, `correct`; and the objects `provenance`,
`scores` and `path`. A cell of a sweep that has not finished is a row without numbers.
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
from voidpad.evaluate.folder import RunFolder, damaged, read_versioned
from voidpad.evaluate.intervals import Interval, mean_of_tasks, wilson
from voidpad.experiments.report.layout import METRICS, SUFFIX

# Fields that make another method of a preset: replaced rules, and what approximates or changes it.
_REPLACED = ("stop", "ban", "mute", "eos_penalty", "eos_annealing", "position_decay")
_BESIDE_THE_PLAN = ("cache", "quantize", "hide_eos")


# ---------------------------------------------------------------------------------------------------- reading folders
@dataclass(frozen=True)
class Source:
    """One sweep, or run folders without one."""

    name: str
    frame: pd.DataFrame
    sweep: Mapping[str, Any] | None = None  # NAME.sweep.json: title, cells, tables and figures


def frame(folders: Iterable[Path]) -> pd.DataFrame:
    """The runs of all folders, each task of a run once."""
    frames = [source.frame for folder in folders for source in read(folder)]
    return pd.concat(frames, ignore_index=True).drop_duplicates(["path", "task"], ignore_index=True)


def read(path: Path) -> list[Source]:
    """The sources of a folder of sweeps, one NAME.sweep.json, a run folder, or a folder of run folders."""
    sweeps = [path] if path.name.endswith(SUFFIX) else sorted(path.glob(f"*{SUFFIX}"))
    if sweeps:
        return [_read_sweep(sweep) for sweep in sweeps]
    own = [path] if (path / "config.json").is_file() else []
    runs = own or sorted(config.parent for config in path.glob("*/config.json"))
    if not runs:
        raise DataError(f"{path}: no run here; give a folder written by `voidpad eval` or `voidpad sweep`.")
    rows = [row for run in runs if RunFolder(run).complete for row in _finished(RunFolder(run), {})]
    return [Source(path.name, _table(rows))]


def _read_sweep(path: Path) -> Source:
    sweep = read_versioned(path)
    rows: list[dict[str, Any]] = []
    with damaged(path, "run the sweep again"):
        for cell in sweep["cells"]:
            run = RunFolder(path.parent / cell["folder"])
            if run.complete:
                rows += _finished(run, cell)
            else:
                rows.append(_named(run.path, cell, cell) | {"task": cell["config"]["tasks"][0]})
    return Source(path.name.removesuffix(SUFFIX), _table(rows), sweep)


def _table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Numbers as numbers, everything else as it is in the files."""
    found = pd.DataFrame(rows, dtype=object)
    for name in (*METRICS, "n", "test_size", "correct"):
        if name in found:
            found[name] = pd.to_numeric(found[name])
    return found


def _named(path: Path, head: Mapping[str, Any], labels: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a run that are known before it is finished; a sweep's labels name its row, else the config."""
    config, plan = head["config"], head["plan"] or {}
    # A run that reads canvases as the paper's harness does is graded as the paper graded.
    grader = labels.get("grader") or ("authors" if config["parity"] else "")
    return {
        "path": str(path),
        "model": labels.get("model") or " + ".join(filter(None, (config["model"], config["adapter"]))),
        "method": labels.get("method") or _method_label(config),
        "grader": grader,
        **labels.get("labels", {}),
        **{f"plan.{name}": value for name, value in plan.items()},
        **{f"config.{name}": value for name, value in config.items()},
    }


def _finished(run: RunFolder, labels: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each task of a complete run folder."""
    head, results = run.head, run.results
    assert results is not None
    rows = []
    with damaged(run.path / "results.json"):
        facts = results["provenance"]
        for task, found in results["tasks"].items():
            row = _named(run.path, head, labels)
            nfe = found["passes_decode"]
            # An adaptive length has no number of passes to the end of its canvas.
            steps = head["plan"].get("steps") if facts["fixed_canvas"] else None
            row |= {
                "task": task,
                "provenance": facts,
                "n": found["n"],
                "test_size": found["test_size"],
                "scores": {name: one["correct"] for name, one in found["scores"].items()},
                "filter": found["filter"],
                "correct": found["correct"],
                "score": 100 * found["correct"] / found["n"],
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
            rows.append(_graded(row, row["grader"]))
    return rows


def _graded(row: dict[str, Any], grader: str) -> dict[str, Any]:
    """The same generations under another grader of the task; a task without it keeps its own."""
    correct = (row.get("scores") or {}).get(grader)
    if correct is None:
        return row
    return {**row, "correct": correct, "score": 100 * correct / row["n"], "filter": grader, "grader": grader}


def graded(rows: pd.DataFrame, grader: str) -> pd.DataFrame:
    """All rows under another grader."""
    if not grader:
        return rows
    done = rows[rows["n"].notna()]
    changed = pd.DataFrame([_graded(row, grader) for row in done.to_dict("records")], index=done.index)
    return pd.concat([changed, rows[rows["n"].isna()]]).sort_index()


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
    grader = row["grader"]
    return {
        one["index"]: one["scores"].get(grader, one["score"])
        for one in RunFolder(Path(row["path"])).examples
        if one["task"] == row["task"]
    }


# -------------------------------------------------------------------------------------------------- choosing, combining
def column(rows: pd.DataFrame, name: str) -> pd.Series[Any]:
    """A column by the name that layouts use; lists become texts, so that values can be compared."""
    if name == "setting":
        return _settings(rows)
    for full in (name, f"plan.{name}", f"config.{name}"):
        # Names of metrics are names of plan fields too (`canvas`, `score`), and layouts mean the plan's.
        if full in rows and not (full == name and name in METRICS):
            found = rows[full]
            return found.map(lambda value: str(value) if isinstance(value, (list, dict)) else value)
    return pd.Series([None] * len(rows), index=rows.index, dtype=object)


def _settings(rows: pd.DataFrame) -> pd.Series[Any]:
    """The plan fields that differ between the rows, as text."""
    plans = [name for name in rows if name.startswith("plan.")]
    moving = [name for name in plans if rows[name].dropna().map(str).nunique() > 1]

    def text(row: pd.Series[Any]) -> str:
        there = [name for name in moving if isinstance(row[name], (list, dict)) or not pd.isna(row[name])]
        return ", ".join(f"{name[5:]}={_plain(row[name])}" for name in there)

    return rows.apply(text, axis=1).astype(object) if len(rows) else pd.Series(dtype=object)


def _plain(value: Any) -> Any:
    """Columns with gaps hold whole numbers as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() and value >= 1 else value


def select(rows: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have the value, or one of the values, of every column named."""
    for name, value in where.items():
        rows = rows[column(rows, name).isin(value if isinstance(value, (list, tuple)) else [value])]
    return rows


def ordered(values: Iterable[Any]) -> list[Any]:
    """Distinct values: numbers ascending, anything else as first met."""
    distinct = list(dict.fromkeys(map(_plain, values)))
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


def combined(rows: pd.DataFrame, name: str, tasks: int | None = None) -> Value:
    """A metric over runs: averaged over the runs of a task, then unweighted over tasks.

    Unknown until every run has finished, and while there are fewer than so many `tasks`.
    """
    metric = METRICS[name]
    groups = [group for _, group in rows.groupby("task", sort=False)]
    if not groups or len(groups) < (tasks or 1):
        return Value(decimals=metric.decimals)
    if name == "tokens_per_pass":
        answer, nfe = combined(rows, "answer", tasks).number, combined(rows, "nfe", tasks).number
        return Value(answer / nfe if answer is not None and nfe else None, metric.decimals)
    if name not in rows or rows[name].isna().any():
        return Value(decimals=metric.decimals)
    means = [fmean(group[name]) for group in groups]
    interval = None
    if name == "score":
        shares = [_wilson(group) for group in groups]
        interval = mean_of_tasks(list(zip(means, shares, strict=True)))
    return Value(metric.combine(means), metric.decimals, interval)


def _wilson(rows: pd.DataFrame) -> Interval:
    """Of one task. Runs averaged over the same examples spread no wider than one run of that mean."""
    size = int(rows["n"].min())
    low, high = wilson(fmean(rows["correct"] / rows["n"]) * size, size)
    return 100 * low, 100 * high
