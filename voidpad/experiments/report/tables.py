"""Layouts and rows of the frame -> tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pandas as pd

from voidpad.decode.presets import APPROXIMATE_FIELDS
from voidpad.errors import ConfigError
from voidpad.evaluate.intervals import paired_bootstrap
from voidpad.experiments.report.frame import Value, column, combined, graded, ordered, select, verdicts
from voidpad.experiments.report.layout import METRICS, TableLayout

_OUTER = ("model", "metric", "task")  # rows that agree in these are compared with each other
Cells = dict[str, Value]  # of one row, by the head of their column
Group = dict[tuple[str, ...], Cells]  # rows that are compared with each other, by their names


@dataclass(frozen=True)
class Table:
    """A table before it is drawn; groups of rows are set apart by a rule."""

    title: str
    reference: str
    heads: tuple[str, ...]  # of the names of a row
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    runs: pd.DataFrame

    @property
    def rows(self) -> Group:
        return {names: cells for group in self.groups for names, cells in group.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(next(iter(self.groups[0].values())))


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
    groups: dict[tuple[str, ...], Group] = {}
    for metric in layout.values if "metric" in layout.index else [None]:
        for key, mine in every.groupby([f"at.{name}" for name in names], sort=False, dropna=False):
            known = dict(zip(names, key, strict=True))
            known["metric"] = METRICS[metric].title if metric else None
            inside = rows[rows["model"] == known["model"]] if "model" in known else rows
            tasks = ordered(inside["task"]) if known.get("task", "mean") == "mean" else [known["task"]]
            shown = {name: "" if pd.isna(known[name]) else str(known[name]) for name in layout.index}
            outer = (metric or layout.values[0], *(shown[name] for name in layout.index if name in _OUTER))
            cells = _cells(layout, [metric] if metric else layout.values, mine, rows, tasks)
            groups.setdefault(outer, {})[tuple(shown.values())] = cells
    if "method" in layout.index[1:] and layout.columns and not layout.only_aggregates:
        for (ranked_by, *_), group in groups.items():
            _rank(group, METRICS[ranked_by].better)
    # Groups of one model stand together, then those of one metric or task, each in the order in which it came first.
    places = {
        name: at for at, name in enumerate(dict.fromkeys(name for outer in groups for name in outer[1:]))
    }
    in_order = [groups[key] for key in sorted(groups, key=lambda outer: [places[name] for name in outer[1:]])]
    notes = []
    if "speedup" in layout.values:
        notes.append(
            f"Speed-ups are seconds of {layout.baseline} over seconds of the method; their mean is geometric."
        )
    values = [value for group in groups.values() for cells in group.values() for value in cells.values()]
    if unknown := sum(value.number is None and not value.blank for value in values):
        notes.append(f"{unknown} values are not known yet, or were not timed alone.")
    heads = tuple(name.capitalize() if name in (*_OUTER, "method") else name for name in layout.index)
    return Table(layout.title, layout.reference, heads, tuple(in_order), tuple(notes), rows)


def _cells(
    layout: TableLayout,
    metrics: Sequence[str],
    mine: pd.DataFrame,
    rows: pd.DataFrame,
    tasks: Sequence[str],
) -> Cells:
    """The cells of one row. `tasks` are those that the row's model has."""
    cells: Cells = {}
    for name in metrics:
        title = METRICS[name].title
        if not layout.columns:
            cells[title] = combined(mine, name)
            continue
        prefix = f"{title}: " if len(metrics) > 1 else ""
        along: Cells = {}
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
            mean = combined(mine, name, len(tasks))
            cells[f"{prefix}{kind}"] = _aggregate(kind, list(along.values()), mean, METRICS[name].better)
    if layout.exact:
        change = against_exact(mine, rows)
        cells["against exact"] = Value(decimals=1, blank=change is not None)
        if change:
            cells["against exact"] = Value(fmean(change), 1, paired_bootstrap(change))
    return cells | {METRICS[name].title: combined(mine, name, len(tasks)) for name in layout.extra}


def _aggregate(kind: str, along: Sequence[Value], mean: Value, better: int) -> Value:
    """A summary of a row's cells, known when all of them are. The mean is that of the runs."""
    wanted = [value for value in along if not value.blank]
    known = [value for value in wanted if value.number is not None]
    if not known or (len(known) < len(wanted) and kind not in ("min", "max")):
        return Value(decimals=mean.decimals)
    if kind == "mean":
        return mean
    numbers = [value.number or 0.0 for value in known]
    if kind == "difference":
        return Value(numbers[-1] - numbers[0], mean.decimals)
    largest = kind == "max" or kind == ("best" if better >= 0 else "worst")
    return known[numbers.index(max(numbers) if largest else min(numbers))]


def _rank(group: Group, better: int) -> None:
    """Mark the best and the second best value of every column; what prints alike shares a place."""
    for head in next(iter(group.values())) if better else ():
        known = [cells for cells in group.values() if cells[head].number is not None]
        printed = sorted({float(cells[head].text) for cells in known}, reverse=better > 0)
        for cells in known if len(printed) > 1 else ():
            place = 1 + printed.index(float(cells[head].text))
            cells[head] = replace(cells[head], place=place if place <= 2 else 0)


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


def _without_approximations(row: Mapping[str, Any]) -> str:
    """Everything that decides a run but its approximations and the fields that set them."""
    given = {name: value for name, value in row["config.fields"].items() if name not in APPROXIMATE_FIELDS}
    changed = {"config.cache": None, "config.quantize": None, "config.fields": given}
    config = {name: value for name, value in row.items() if name.startswith("config.")} | changed
    return json.dumps([config, row["task"], row["grader"]], sort_keys=True, default=str)
