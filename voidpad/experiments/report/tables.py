"""Layouts and rows of the frame -> tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import pandas as pd

from voidpad.decode.presets import APPROXIMATE_FIELDS
from voidpad.errors import ConfigError
from voidpad.evaluate.intervals import paired_bootstrap
from voidpad.experiments.report.frame import (
    Value,
    column,
    combined,
    graded,
    ordered,
    select,
    verdicts,
)
from voidpad.experiments.report.layout import METRICS, TableLayout

_OUTER = ("model", "metric", "task")  # rows that agree in these are compared with each other


@dataclass(frozen=True)
class TableRow:
    head: tuple[str, ...]
    values: tuple[Value, ...]
    group: tuple[str, ...] = ()


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
    names = [name for name in (*layout.index, layout.columns) if name and name not in ("metric", "examples")]
    rows = rows.assign(**{f"at.{name}": column(rows, name) for name in names})
    rows = rows.assign(**{"at.examples": _examples(rows), "speedup": _speedup(rows, layout.baseline)})
    columns = ordered(rows[f"at.{layout.columns}"]) if layout.columns else []
    found = []
    for head, mine, values, tasks in _groups(layout, rows):
        cells = _cells(layout, mine, values, columns, tasks, rows)
        group = tuple(text for name, text in zip(layout.index, head, strict=True) if name in _OUTER)
        found.append(TableRow(head, tuple(cells), group))
    notes = []
    if "speedup" in layout.values:
        notes.append(
            f"Speed-ups are seconds of {layout.baseline} over seconds of the method; their mean is geometric."
        )
    unknown = sum(value.number is None and not value.blank for row in found for value in row.values)
    if unknown:
        notes.append(f"{unknown} values are not known yet, or were not timed alone.")
    return Table(
        layout.title,
        tuple(name.capitalize() if name in (*_OUTER, "method") else name for name in layout.index),
        tuple(_names(layout, columns)),
        tuple(_ranked(layout, found)),
        layout.reference,
        tuple(notes),
        rows,
    )


def _groups(
    layout: TableLayout, rows: pd.DataFrame
) -> Iterator[tuple[tuple[str, ...], pd.DataFrame, tuple[str, ...], list[str]]]:
    """(names of the row, its runs, its metrics, the tasks that its model has) for each row of the table."""
    index = layout.index
    inner = [f"at.{name}" for name in index if name not in _OUTER]
    for model in ordered(rows["model"]) if "model" in index else [None]:
        inside = rows if model is None else rows[rows["model"] == model]
        tasks = ordered(inside["task"])
        shown: list[str | None] = [None]
        if "task" in index:
            shown = [*tasks, "mean"] if len(tasks) > 1 and layout.columns else list(tasks)
        metrics: Sequence[str | None] = layout.values if "metric" in index else [None]
        for metric in metrics:
            for task in shown:
                here = inside if task in (None, "mean") else inside[inside["task"] == task]
                for key, mine in here.groupby(inner, sort=False, dropna=False) if inner else [((), here)]:
                    title = METRICS[metric].title if metric else None
                    known = {"model": model, "metric": title, "task": task}
                    known |= dict(zip((name[3:] for name in inner), key, strict=True))
                    head = tuple(_shown(known[name]) for name in index)
                    one = task is not None and task != "mean"
                    own = [str(task)] if one else tasks
                    yield head, mine, (metric,) if metric else layout.values, own


def _shown(value: Any) -> str:
    """A value as a row's name."""
    [plain] = ordered([value])
    return "" if plain is None or pd.isna(plain) else str(plain)


def _cells(
    layout: TableLayout,
    mine: pd.DataFrame,
    values: Sequence[str],
    columns: Sequence[Any],
    tasks: Sequence[str],
    rows: pd.DataFrame,
) -> list[Value]:
    cells: list[Value] = []
    for name in values:
        along = []
        for at in columns:
            if layout.columns == "task":
                there = combined(mine[mine["task"] == at], name) if at in tasks else Value(blank=True)
            else:
                there = combined(mine[mine[f"at.{layout.columns}"] == at], name, len(tasks))
            along.append(there)
        if not columns:
            cells.append(combined(mine, name))
        if not layout.only_aggregates:
            cells += along
        cells += [_aggregate(kind, along, mine, name, len(tasks)) for kind in layout.aggregate if columns]
    if layout.exact:
        cells.append(_against_exact(mine, rows))
    return cells + [combined(mine, name, len(tasks)) for name in layout.extra]


def _aggregate(kind: str, along: Sequence[Value], mine: pd.DataFrame, name: str, tasks: int) -> Value:
    """A summary of a row's cells, known when all of them are; the mean is taken over the runs."""
    metric = METRICS[name]
    known = [value.number for value in along if not value.blank]
    numbers = [number for number in known if number is not None]
    if not numbers or (len(numbers) < len(known) and kind not in ("min", "max")):
        return Value(decimals=metric.decimals)
    if kind == "mean":
        return combined(mine, name, tasks)
    if kind == "difference":
        return Value(numbers[-1] - numbers[0], metric.decimals)
    best = max if metric.better >= 0 else min
    worst = min if metric.better >= 0 else max
    pick = {"best": best, "worst": worst, "min": min, "max": max}[kind]
    chosen = pick(numbers)
    return next(value for value in along if value.number == chosen)


def _names(layout: TableLayout, columns: Sequence[Any]) -> Iterator[str]:
    """The heads of the columns, in the order of `_cells`."""
    several = len(layout.values) > 1 and "metric" not in layout.index
    for name in layout.values[:1] if "metric" in layout.index else layout.values:
        title = f"{METRICS[name].title}: " if several else ""
        if not layout.columns:
            yield METRICS[name].title
            continue
        if not layout.only_aggregates:
            plain = layout.columns in ("task", "method") or not all(
                isinstance(at, (int, float)) for at in columns
            )
            yield from (f"{title}{at}" if plain else f"{title}{layout.columns} {at}" for at in columns)
        yield from (f"{title}{kind}" for kind in layout.aggregate)
    if layout.exact:
        yield "against exact"
    yield from (METRICS[name].title for name in layout.extra)


def _ranked(layout: TableLayout, rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows with the best and second best of each column of a group marked; what prints alike shares a place."""
    if "method" not in layout.index[1:] or not layout.columns or layout.only_aggregates:
        return list(rows)
    placed = []
    titles = {metric.title: metric for metric in METRICS.values()}
    for row in rows:
        mates = [other for other in rows if other.group == row.group]
        metric = METRICS[layout.values[0]]
        if "metric" in layout.index:
            metric = titles[row.head[layout.index.index("metric")]]
        values = list(row.values)
        for at, value in enumerate(row.values):
            column_values = [other.values[at] for other in mates]
            printed = {
                round(metric.better * v.number, v.decimals) for v in column_values if v.number is not None
            }
            if metric.better == 0 or len(printed) < 2 or value.number is None:
                continue
            order = sorted(printed, reverse=True)[:2]
            mine = round(metric.better * value.number, value.decimals)
            values[at] = replace(value, place=order.index(mine) + 1 if mine in order else 0)
        placed.append(replace(row, values=tuple(values)))
    return placed


def _speedup(rows: pd.DataFrame, baseline: str) -> pd.Series[Any]:
    """The baseline's seconds on the same model and task over those of each row."""
    if "wall" not in rows:
        return pd.Series(float("nan"), index=rows.index)
    base = rows[rows["method"] == baseline].groupby(["model", "task"])["wall"].mean().to_dict()
    keys = zip(rows["model"], rows["task"], strict=True)
    return pd.Series([base.get(key, float("nan")) for key in keys], index=rows.index) / rows["wall"]


def _examples(rows: pd.DataFrame) -> pd.Series[Any]:
    if "n" not in rows:
        return pd.Series("", index=rows.index)
    counts = [
        "" if pd.isna(n) else f"{n:.0f}" if n == size else f"{n:.0f} of {size:.0f}"
        for n, size in zip(rows["n"], rows["test_size"], strict=True)
    ]
    return pd.Series(counts, index=rows.index, dtype=object)


# ----------------------------------------------------------------------------------- approximations against exact runs
def _against_exact(mine: pd.DataFrame, rows: pd.DataFrame) -> Value:
    """Mean score of approximate runs minus that of exact ones on the same examples, in points."""
    differences = against_exact(mine, rows)
    if not differences:
        return Value(decimals=1, blank=differences is not None)
    return Value(fmean(differences), 1, paired_bootstrap(differences))


def against_exact(mine: pd.DataFrame, rows: pd.DataFrame) -> list[float] | None:
    """The score of every example minus that of the exact run, in points; None until both have finished.

    The exact run of a row differs from it in the approximations alone. An exact row has nothing to compare, and its
    list is empty.
    """
    exact = {
        _without_approximations(row): row
        for row in rows.to_dict("records")
        if isinstance(row.get("provenance"), dict) and not row["provenance"]["approximations"]
    }
    differences: list[float] = []
    for row in mine.to_dict("records"):
        other = exact.get(_without_approximations(row))
        if not isinstance(row.get("provenance"), dict) or other is None:
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
