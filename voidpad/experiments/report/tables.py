"""Layouts and records -> tables: the paper's Tables 1 to 6 and the details behind them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

from voidpad.decode.switches import APPROXIMATE_FIELDS
from voidpad.errors import ConfigError
from voidpad.evaluate.scores import paired
from voidpad.evaluate.settings import RESOLVED
from voidpad.experiments.report.layout import Blocks, Details, Item, Methods, Spread, Stopping, Tasks
from voidpad.experiments.report.records import CellRecord
from voidpad.experiments.report.reference import Pair, pairs, published_mean
from voidpad.experiments.report.report_metrics import (
    METRICS,
    Metric,
    Value,
    combined,
    mean_value,
    ordered,
    ranked,
    task_value,
)

MOST_NAMED = 20  # published numbers that a note lists one by one


@dataclass(frozen=True)
class TableRow:
    head: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A table before it is drawn: groups of rows are compared with each other and set apart by a rule."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    groups: tuple[tuple[TableRow, ...], ...]
    reference: str = ""
    notes: tuple[str, ...] = ()
    records: tuple[CellRecord, ...] = ()

    @property
    def rows(self) -> list[TableRow]:
        return [row for group in self.groups for row in group]


def _title_of(model: str, records: Sequence[CellRecord]) -> str:
    return next(record.title for record in records if record.model == model)


def build(layout: Item, records: Sequence[CellRecord]) -> Table:
    """The table a layout describes, over the records it selects."""
    chosen = tuple(record.graded(layout.grader) for record in records if record.matches(layout.where))
    if not chosen:
        raise ConfigError(f"table {layout.title!r}: no finished run matches where={layout.where}.")
    table = replace(_table_of(layout, chosen), records=chosen, reference=layout.reference)
    return replace(table, notes=(*table.notes, *_unknown_note(table)))


@singledispatch
def _table_of(layout: Item, records: Sequence[CellRecord]) -> Table:
    raise TypeError(layout)


@_table_of.register
def _(layout: Blocks, records: Sequence[CellRecord]) -> Table:
    metric = METRICS[layout.metric]
    columns = ordered(record.get(layout.across) for record in records)
    groups = []
    for model in ordered(record.model for record in records):
        tasks = ordered(record.task for record in records if record.model == model)
        for task in [*tasks, "mean"] if len(tasks) > 1 else tasks:
            inside = [r for r in records if r.model == model and task in (r.task, "mean")]
            rows = [
                TableRow(
                    (_title_of(model, inside), task, method), _block_values(mine, layout, columns, len(tasks))
                )
                for method in ordered(r.method for r in inside)
                for mine in [[r for r in inside if r.method == method]]
            ]
            groups.append(_rank(rows, metric.better, len(columns) + len(layout.summary)))
    names = [f"{layout.across} {column}" for column in columns] + list(layout.summary)
    return _with_paper_column(Table(layout.title, ("Model", "Task", "Method"), tuple(names), tuple(groups)))


def _block_values(
    mine: Sequence[CellRecord], layout: Blocks, columns: Sequence[Any], tasks: int
) -> tuple[Value, ...]:
    """A row of a block table: the columns, the summaries, and the paper's mean where it has one."""
    metric = METRICS[layout.metric]
    whole = 1 if len({r.task for r in mine}) == 1 else tasks
    cells = [
        complete([r for r in mine if r.get(layout.across) == column], metric, whole) for column in columns
    ]
    known = all(cell.number is not None for cell in cells)
    summaries = [_summary(name, cells, mine, metric) if known else Value() for name in layout.summary]
    return (*cells, *summaries, published_mean(mine, metric) if known else Value())


def _summary(name: str, cells: Sequence[Value], mine: Sequence[CellRecord], metric: Metric) -> Value:
    if name == "mean":
        return combined(mine, metric)
    pick = max if (name == "best") == (metric.better >= 0) else min
    return pick(cells, key=lambda cell: cell.number if cell.number is not None else 0.0)


def complete(records: Sequence[CellRecord], metric: Metric, tasks: int) -> Value:
    """The mean over tasks, unknown until every task has finished."""
    return (
        combined(records, metric)
        if len({r.task for r in records}) == tasks
        else Value(decimals=metric.decimals)
    )


@_table_of.register
def _(layout: Tasks, records: Sequence[CellRecord]) -> Table:
    tasks = ordered(record.task for record in records)
    groups = []
    for model in ordered(record.model for record in records):
        for metric in (METRICS[name] for name in layout.metrics):
            inside = [r for r in records if r.model == model]
            rows = [
                TableRow(
                    (_title_of(model, inside), metric.title, label),
                    _task_values(mine, inside, metric, layout, tasks),
                )
                for label, mine in _lines(inside, layout.split)
            ]
            groups.append(_rank(rows, metric.better, len(tasks) + 1))
    names = (*tasks, "mean")
    table = Table(
        layout.title, ("Model", "Metric", "Method"), names, tuple(groups), notes=_speed_note(layout)
    )
    return _with_paper_column(table)


def _lines(records: Sequence[CellRecord], split: Sequence[str]) -> list[tuple[str, list[CellRecord]]]:
    """Rows of a task table: a method, or a method at one value of each split setting."""
    names = ordered((r.method, *(r.get(name) for name in split)) for r in records)
    return [
        (
            " ".join([name[0], *(f"{key}={value}" for key, value in zip(split, name[1:], strict=True))]),
            [r for r in records if (r.method, *(r.get(key) for key in split)) == name],
        )
        for name in names
    ]


def _task_values(
    mine: Sequence[CellRecord],
    inside: Sequence[CellRecord],
    metric: Metric,
    layout: Tasks,
    tasks: Sequence[str],
) -> tuple[Value, ...]:
    own = ordered(record.task for record in inside)
    cells = {task: task_value([r for r in mine if r.task == task], metric) for task in own}
    if metric.name == "speedup":
        base = [r for r in inside if r.method == layout.baseline]
        cells = {t: _ratio(task_value([r for r in base if r.task == t], metric), cells[t]) for t in own}
    mean = mean_value(list(cells.values()), metric)
    shown = [cells.get(task, Value(blank=True)) for task in tasks]
    return (*shown, mean, published_mean(mine, metric) if mean.number is not None else Value())


def _ratio(over: Value, under: Value) -> Value:
    if over.number is None or not under.number:
        return Value(decimals=2)
    return Value(over.number / under.number, 2)


def _speed_note(layout: Tasks) -> tuple[str, ...]:
    if "speedup" not in layout.metrics:
        return ()
    return (
        f"Speed-ups are seconds of {layout.baseline} over seconds of the method; their mean is geometric.",
    )


@_table_of.register
def _(layout: Stopping, records: Sequence[CellRecord]) -> Table:
    score, saved = METRICS["score"], METRICS["nfe_reduction"]
    groups = []
    for model in ordered(record.model for record in records):
        rows = []
        for name, methods in layout.pairs.items():
            vanilla, ended = ([r for r in records if (r.model, r.method) == (model, m)] for m in methods)
            before, after = combined(vanilla, score), combined(ended, score)
            values = (before, after, combined(ended, saved), _difference(before, after))
            rows.append(TableRow((_title_of(model, records), name), values))
        groups.append(_rank(rows, +1, 3))
    columns = ("vanilla stopping", "[EOS]Termination", "NFE reduction (%)", "difference")
    return Table(layout.title, ("Model", "Padding"), columns, tuple(groups))


def _difference(before: Value, after: Value) -> Value:
    if before.number is None or after.number is None:
        return Value()
    return Value(after.number - before.number)


@_table_of.register
def _(layout: Spread, records: Sequence[CellRecord]) -> Table:
    groups = []
    for model in ordered(record.model for record in records):
        inside = [record for record in records if record.model == model]
        rows = [
            TableRow((_title_of(model, inside), name, _moved(near, axes)), _spread_values(near, axes))
            for name, axes in layout.factors.items()
            for near in [
                [r for r in inside if r.matches({k: v for k, v in layout.base.items() if k not in axes})]
            ]
        ]
        groups.append(tuple(rows))
    columns = ("score min", "score max", "NFE min", "NFE max")
    return Table(layout.title, ("Model", "Factor", "Values"), columns, tuple(groups))


def _moved(records: Sequence[CellRecord], axes: Sequence[str]) -> str:
    """The values a factor took, or how many pairs when several settings moved together."""
    settings = ordered(tuple(r.get(axis) for axis in axes) for r in records)
    if len(axes) > 1:
        return f"{len(settings)} settings"
    return ", ".join(str(value) for value in ordered(value for (value,) in settings))


def _spread_values(records: Sequence[CellRecord], axes: Sequence[str]) -> tuple[Value, ...]:
    tasks = len({record.task for record in records})
    settings = ordered(tuple(r.get(axis) for axis in axes) for r in records)
    at = [[r for r in records if tuple(r.get(axis) for axis in axes) == setting] for setting in settings]
    values = []
    for metric in (METRICS["score"], METRICS["nfe"]):
        means = [complete(group, metric, tasks).number for group in at]
        known = [mean for mean in means if mean is not None]
        ends = (min(known), max(known)) if known and len(known) == len(means) else (None, None)
        values += [Value(end, metric.decimals) for end in ends]
    return tuple(values)


@_table_of.register
def _(layout: Methods, records: Sequence[CellRecord]) -> Table:
    tasks = ordered(record.task for record in records)
    metrics = [METRICS[name] for name in layout.metrics]
    groups: list[tuple[TableRow, ...]] = []
    for method in ordered(record.method for record in records):
        mine = [record for record in records if record.method == method]
        rows = []
        for setting in ordered(tuple(r.get(name) for name in layout.split) for r in mine):
            cells = [r for r in mine if tuple(r.get(name) for name in layout.split) == setting]
            whole = len({r.task for r in cells}) == len(tasks)
            scores = [task_value([r for r in cells if r.task == task], METRICS["score"]) for task in tasks]
            mean = complete(cells, METRICS["score"], len(tasks))
            apart = (_against_exact(cells, records),) if layout.exact else ()
            costs = [
                combined(cells, metric) if whole else Value(decimals=metric.decimals) for metric in metrics
            ]
            values = (mean, *apart, *scores, *costs, _tokens_per_pass(cells))
            rows.append(TableRow((method, *map(str, setting)), values))
        groups.append(tuple(rows))
    heads = ("Method", *layout.split)
    exact = ("against exact",) if layout.exact else ()
    names = ("mean", *exact, *tasks, *(metric.title for metric in metrics), "Tokens a pass")
    return Table(layout.title, heads, names, tuple(groups))


def _tokens_per_pass(cells: Sequence[CellRecord]) -> Value:
    """Answer tokens over decoding passes, both averaged over tasks first."""
    return _ratio(combined(cells, METRICS["answer"]), combined(cells, METRICS["nfe"]))


def _against_exact(cells: Sequence[CellRecord], records: Sequence[CellRecord]) -> Value:
    """Mean score of approximate runs minus that of exact ones on the same examples, in points."""
    differences = against_exact(cells, records)
    if not differences:
        return Value(blank=differences is not None)
    mean, half = paired(differences)
    return Value(mean, 1, (mean - half, mean + half))


def against_exact(cells: Sequence[CellRecord], records: Sequence[CellRecord]) -> list[float] | None:
    """The score of every example minus that of the exact run, in points; None until both have finished.

    The exact run of a cell differs from it in the approximations alone. An exact cell has nothing to compare, and its
    list is empty.
    """
    exact = {_baseline(r): r for r in records if r.done and not r.provenance.get("approximations")}
    differences: list[float] = []
    for cell in cells:
        other = exact.get(_baseline(cell))
        if not cell.done or other is None:
            return None
        if other is cell:
            return []
        theirs = {one["index"]: one["score"] for one in other.examples}
        mine = {one["index"]: one["score"] for one in cell.examples}
        differences += [100 * (mine[index] - theirs[index]) for index in mine.keys() & theirs.keys()]
    return differences or None


def _baseline(record: CellRecord) -> str:
    """Everything that decides a cell but its approximations and the fields that set them."""
    kept = {
        name: value
        for name, value in record.settings.items()
        if name not in ("cache", "quantize", "fields", RESOLVED)
    }
    given = record.settings["fields"]
    fields = {name: value for name, value in given.items() if name not in APPROXIMATE_FIELDS}
    return json.dumps(
        {**kept, "fields": fields, "task": record.task, "grader": record.grader}, sort_keys=True
    )


@_table_of.register
def _(layout: Details, records: Sequence[CellRecord]) -> Table:
    metrics = [METRICS[name] for name in DETAILS]
    moving = [name for name in ordered(key for r in records for key in r.at) if _varies(records, name)]
    groups: dict[tuple[str, str], list[TableRow]] = {}
    for record in (record for record in records if record.done):
        setting = ", ".join(f"{name}={record.at[name]}" for name in moving if name in record.at)
        head = (record.title, record.task, record.method, setting, _examples(record))
        values = tuple(task_value([record], metric) for metric in metrics)
        groups.setdefault((record.model, record.task), []).append(TableRow(head, values))
    heads = ("Model", "Task", "Method", "Setting", "Examples")
    return Table(layout.title, heads, tuple(m.title for m in metrics), tuple(map(tuple, groups.values())))


DETAILS = ("score", "nfe", "probes", "passes", "canvas", "answer", "at_cap", "without_eos", "wall")


def _examples(record: CellRecord) -> str:
    n, size = record.result["n"], record.result["test_size"]
    return str(n) if n == size else f"{n} of {size}"


def _varies(records: Sequence[CellRecord], name: str) -> bool:
    return len({str(r.at[name]) for r in records if name in r.at}) > 1


def _rank(rows: Sequence[TableRow], better: int, width: int) -> tuple[TableRow, ...]:
    """Best and second best of each of the first `width` columns, marked."""
    columns = [ranked([row.values[at] for row in rows], better) for at in range(width)]
    return tuple(
        TableRow(row.head, (*(column[at] for column in columns), *row.values[width:]))
        for at, row in enumerate(rows)
    )


def _with_paper_column(table: Table) -> Table:
    """Keep the last value of every row, the paper's, if any row has one."""
    if any(row.values[-1].number is not None for row in table.rows):
        return replace(table, columns=(*table.columns, "paper"))
    groups = [tuple(TableRow(row.head, row.values[:-1]) for row in group) for group in table.groups]
    return replace(table, groups=tuple(groups))


def _unknown_note(table: Table) -> tuple[str, ...]:
    """How many cells are not measured yet; a paper column has gaps of its own."""
    width = len(table.columns) - (table.columns[-1] == "paper")
    values = [value for row in table.rows for value in row.values[:width]]
    missing = sum(value.number is None and not value.blank for value in values)
    return (f"{missing} values are not known yet, or were not timed alone.",) if missing else ()


def comparison(records: Sequence[CellRecord]) -> Table | None:
    """Paper against measured, one row per published number; None when no run is one of the paper's."""
    compared = pairs(records)
    if not compared:
        return None
    groups: dict[tuple[str, str], list[TableRow]] = {}
    for pair in compared:
        number, decimals = pair.number, pair.measured.decimals
        setting = ", ".join(f"{name}={value}" for name, value in sorted(number.settings))
        assert pair.record.published is not None
        title = pair.record.published.models[number.model].title
        head = (number.source, title, number.metric, number.task, number.method, setting)
        values = (pair.measured, Value(number.value, decimals), Value(pair.difference, decimals))
        groups.setdefault((number.source, number.metric), []).append(TableRow(head, values))
    judged = [pair.inside for pair in compared if pair.inside is not None]
    notes = [f"{sum(judged)} of {len(judged)} published scores lie inside our 95 % interval."]
    if differing := [pair for pair in compared if pair.inside is False]:
        notes.append(f"Outside it: {'; '.join(map(str, differing[:MOST_NAMED]))}{_more(differing)}.")
    heads = ("Source", "Model", "Metric", "Task", "Method", "Setting")
    ours = tuple({id(pair.record): pair.record for pair in compared}.values())
    rows = tuple(map(tuple, groups.values()))
    return Table(
        "Paper versus measured", heads, ("measured", "paper", "difference"), rows, "", tuple(notes), ours
    )


def _more(differing: Sequence[Pair]) -> str:
    left = len(differing) - MOST_NAMED
    return f"; and {left} more" if left > 0 else ""
