"""Layouts and rows of the frame -> tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import pandas as pd

from voidpad.decode.presets import APPROXIMATE_FIELDS
from voidpad.errors import ConfigError
from voidpad.evaluate.intervals import paired_bootstrap
from voidpad.experiments.report.frame import Value, column, combined, graded, ordered, select, verdicts
from voidpad.experiments.report.layout import METRICS, TableLayout

_OUTER = ("model", "metric", "task")  # rows that agree in these are compared with each other


@dataclass(frozen=True)
class TableRow:
    head: tuple[str, ...]
    values: tuple[Value, ...]
    group: tuple[str, ...]  # model, metric and task, as far as the table has them
    metric: str  # by which it is ranked


@dataclass(frozen=True)
class Table:
    """A table before it is drawn; rows of one group are set apart by a rule."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    reference: str = ""
    notes: tuple[str, ...] = ()
    runs: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)


def build(layout: TableLayout, rows: pd.DataFrame) -> Table:
    """The table that a layout describes, over the rows that it selects."""
    rows = graded(select(rows, layout.where), layout.grader)
    if rows.empty:
        raise ConfigError(f"table {layout.title!r}: no finished run matches where={layout.where}.")
    # The baseline's seconds on the same model and task over those of each row.
    base = rows[rows["method"] == layout.baseline].groupby(["model", "task"])["wall"].mean().rename("base")
    rows = rows.assign(speedup=rows.join(base, on=["model", "task"])["base"] / rows["wall"])
    names = [name for name in layout.index if name != "metric"]
    placed = [*names, layout.columns] if layout.columns else names
    rows = rows.assign(**{f"at.{name}": column(rows, name) for name in placed})
    every = rows
    if "task" in names and layout.columns and rows["task"].nunique() > 1:
        every = pd.concat([rows, rows.assign(**{"at.task": "mean"})])
    found: list[TableRow] = []
    heads: dict[str, None] = {}
    for metric in layout.values if "metric" in layout.index else [None]:
        for key, mine in every.groupby([f"at.{name}" for name in names], sort=False, dropna=False):
            known = dict(zip(names, key, strict=True))
            known["metric"] = METRICS[metric].title if metric else None
            inside = rows[rows["model"] == known["model"]] if "model" in known else rows
            tasks = ordered(inside["task"]) if known.get("task", "mean") == "mean" else [known["task"]]
            cells = _cells(layout, [metric] if metric else layout.values, mine, rows, tasks)
            heads |= dict.fromkeys(cells)
            head = tuple("" if pd.isna(known[name]) else str(known[name]) for name in layout.index)
            group = tuple(text for name, text in zip(layout.index, head, strict=True) if name in _OUTER)
            found.append(TableRow(head, tuple(cells.values()), group, metric or layout.values[0]))
    # Rows of one model, metric and task stand together, each of these in the order in which it came first.
    places = {name: at for at, name in enumerate(dict.fromkeys(name for row in found for name in row.group))}
    found.sort(key=lambda row: [places[name] for name in row.group])
    if "method" in layout.index[1:] and layout.columns and not layout.only_aggregates:
        found = [_ranked(row, found) for row in found]
    notes = []
    if "speedup" in layout.values:
        notes.append(
            f"Speed-ups are seconds of {layout.baseline} over seconds of the method; their mean is geometric."
        )
    if unknown := sum(value.number is None and not value.blank for row in found for value in row.values):
        notes.append(f"{unknown} values are not known yet, or were not timed alone.")
    return Table(
        layout.title,
        tuple(name.capitalize() if name in (*_OUTER, "method") else name for name in layout.index),
        tuple(heads),
        tuple(found),
        layout.reference,
        tuple(notes),
        rows,
    )


def _cells(
    layout: TableLayout,
    metrics: Sequence[str],
    mine: pd.DataFrame,
    rows: pd.DataFrame,
    tasks: Sequence[str],
) -> dict[str, Value]:
    """The cells of one row by the heads of their columns. `tasks` are those that the row's model has."""
    cells: dict[str, Value] = {}
    for name in metrics:
        title = METRICS[name].title
        if not layout.columns:
            cells[title] = combined(mine, name)
            continue
        prefix = f"{title}: " if len(metrics) > 1 else ""
        along: dict[str, Value] = {}
        for at in ordered(rows[f"at.{layout.columns}"]):
            here = mine[mine[f"at.{layout.columns}"] == at]
            if layout.columns == "task":
                along[at] = combined(here, name) if at in tasks else Value(blank=True)
            else:
                label = f"{layout.columns} {at}" if isinstance(at, (int, float)) else str(at)
                along[label] = combined(here, name, len(tasks))
        if not layout.only_aggregates:
            cells |= {f"{prefix}{label}": value for label, value in along.items()}
        for kind in layout.aggregate:
            cells[f"{prefix}{kind}"] = _aggregate(kind, list(along.values()), mine, name, len(tasks))
    if layout.exact:
        change = against_exact(mine, rows)
        cells["against exact"] = Value(decimals=1, blank=change is not None)
        if change:
            cells["against exact"] = Value(fmean(change), 1, paired_bootstrap(change))
    return cells | {METRICS[name].title: combined(mine, name, len(tasks)) for name in layout.extra}


def _aggregate(kind: str, along: Sequence[Value], mine: pd.DataFrame, name: str, tasks: int) -> Value:
    """A summary of a row's cells, known when all of them are; the mean is taken over the runs."""
    metric = METRICS[name]
    wanted = [value for value in along if not value.blank]
    known = [value for value in wanted if value.number is not None]
    numbers = [value.number for value in known if value.number is not None]
    if not known or (len(known) < len(wanted) and kind not in ("min", "max")):
        return Value(decimals=metric.decimals)
    if kind == "mean":
        return combined(mine, name, tasks)
    if kind == "difference":
        return Value(numbers[-1] - numbers[0], metric.decimals)
    largest = kind == "max" or kind == ("best" if metric.better >= 0 else "worst")
    return known[numbers.index(max(numbers) if largest else min(numbers))]


def _ranked(row: TableRow, rows: Sequence[TableRow]) -> TableRow:
    """The row with the best and second best values of its group marked; what prints alike shares a place."""
    mates = [other for other in rows if other.group == row.group]
    better = METRICS[row.metric].better
    values = []
    for at, value in enumerate(row.values):
        printed = {float(mate.values[at].text) for mate in mates if mate.values[at].number is not None}
        best = sorted(printed, reverse=better > 0)[:2]
        ranked = better and len(printed) > 1 and value.number is not None and float(value.text) in best
        values.append(replace(value, place=1 + best.index(float(value.text))) if ranked else value)
    return replace(row, values=tuple(values))


# ----------------------------------------------------------------------------------- approximations against exact runs
def against_exact(mine: pd.DataFrame, rows: pd.DataFrame) -> list[float] | None:
    """The score of every example minus that of the exact run, in points; None until both have finished.

    The exact run of a row differs from it in the approximations alone. An exact row has nothing to compare, and its
    list is empty.
    """
    if mine["n"].isna().any():
        return None
    exact = {
        _without_approximations(row): row
        for row in rows[rows["n"].notna()].to_dict("records")
        if not row["provenance"]["approximations"]
    }
    differences: list[float] = []
    for row in mine.to_dict("records"):
        other = exact.get(_without_approximations(row))
        if other is None:
            return None
        if other["path"] == row["path"]:
            return []
        ours, theirs = verdicts(row), verdicts(other)
        differences += [100 * (ours[index] - theirs[index]) for index in ours.keys() & theirs.keys()]
    return differences or None


def _without_approximations(row: dict[str, Any]) -> str:
    """Everything that decides a run but its approximations and the fields that set them."""
    config = {name: row[name] for name in row if name.startswith("config.")}
    config |= {"config.cache": None, "config.quantize": None}
    given = row["config.fields"]
    config["config.fields"] = {name: given[name] for name in given if name not in APPROXIMATE_FIELDS}
    return json.dumps([config, row["task"], row["grader"]], sort_keys=True, default=str)
