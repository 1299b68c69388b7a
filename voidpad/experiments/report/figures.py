"""Layouts and records -> heat maps, bar charts and lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from voidpad.errors import ConfigError
from voidpad.experiments.report.layout import Bars, Heat, Item, Lines
from voidpad.experiments.report.records import CellRecord
from voidpad.experiments.report.report_metrics import METRICS, Metric, Value, ordered
from voidpad.experiments.report.tables import complete

# Text stays text and ids stay the same, so that equal results give equal files.
LOOK: Any = {
    "svg.hashsalt": "voidpad",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Plot:
    """A drawn figure, in the two formats that pages and papers take."""

    name: str
    title: str
    reference: str
    svg: bytes
    pdf: bytes
    records: tuple[CellRecord, ...]


def plots(layout: Item, records: Sequence[CellRecord]) -> list[Plot]:
    """One plot per model that the layout selects."""
    chosen = [record.graded(layout.grader) for record in records if record.matches(layout.where)]
    if not chosen:
        raise ConfigError(f"figure {layout.title!r}: no finished run matches where={layout.where}.")
    models = ordered(record.model for record in chosen)
    return [_plot(layout, [r for r in chosen if r.model == model], len(models) > 1) for model in models]


def _plot(layout: Item, records: Sequence[CellRecord], several: bool) -> Plot:
    title = f"{layout.title}: {records[0].title}" if several else layout.title
    with matplotlib.rc_context(LOOK):
        figure = _draw(layout, records)
        figure.suptitle(title)
        svg, pdf = file_bytes(figure, "svg"), file_bytes(figure, "pdf")
    return Plot(_slug(title), title, layout.reference, svg, pdf, tuple(records))


def file_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as an svg or pdf file without a date."""
    out = BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(out, format=kind, metadata=dates[kind])
    return out.getvalue()


def _slug(title: str) -> str:
    words = "".join(mark.lower() if mark.isalnum() else " " for mark in title).split()
    return "-".join(words)


@singledispatch
def _draw(layout: Item, records: Sequence[CellRecord]) -> Figure:
    raise TypeError(layout)


@_draw.register
def _(layout: Bars, records: Sequence[CellRecord]) -> Figure:
    metric = METRICS[layout.metric]
    groups, names = (ordered(r.get(name) for r in records) for name in (layout.across, layout.by))
    figure, axes = _blank(max(5.0, 0.35 * len(groups) * len(names) + 2), 3.4)
    width = 0.8 / len(names)
    for at, name in enumerate(names):
        values = [_point(records, {layout.across: group, layout.by: name}, metric) for group in groups]
        centres = [x + (at - (len(names) - 1) / 2) * width for x in range(len(groups))]
        heights = [value.number or 0.0 for value in values]
        axes.bar(centres, heights, width, label=str(name), yerr=_error_bars(values), capsize=2)
    axes.set_xticks(range(len(groups)), [str(group) for group in groups])
    axes.set_yscale("log" if layout.log else "linear")
    return _finish(figure, axes, metric, layout.across)


@_draw.register
def _(layout: Lines, records: Sequence[CellRecord]) -> Figure:
    metric = METRICS[layout.metric]
    values, names = (ordered(r.get(name) for r in records) for name in (layout.across, layout.by))
    figure, axes = _blank(5.0, 3.4)
    for name in names:
        points = [(x, _point(records, {layout.across: x, layout.by: name}, metric)) for x in values]
        known = [(x, value.number) for x, value in points if value.number is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], marker="o", label=str(name))
    axes.set_xticks(values)
    return _finish(figure, axes, metric, layout.across)


@_draw.register
def _(layout: Heat, records: Sequence[CellRecord]) -> Figure:
    metric = METRICS[layout.metric]
    tasks = ordered(record.task for record in records)
    panels = [(task, [r for r in records if r.task == task]) for task in tasks] + [("mean", list(records))]
    figure = Figure(figsize=(2.6 * len(panels), 2.9), layout="constrained")
    for axes, (name, inside) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        xs, ys = (ordered(r.get(axis) for r in records) for axis in (layout.x, layout.y))
        grid = [[_point(inside, {layout.x: x, layout.y: y}, metric) for x in xs] for y in ys]
        _heat_panel(axes, grid, metric)
        axes.set_title(f"{name} {metric.title}", fontsize=9)
        axes.set_xticks(range(len(xs)), [str(x) for x in xs])
        axes.set_yticks(range(len(ys)), [str(y) for y in ys])
        axes.set_xlabel(layout.x)
        axes.set_ylabel(layout.y)
    return figure


def _heat_panel(axes: Axes, grid: Sequence[Sequence[Value]], metric: Metric) -> None:
    """Coloured cells with their numbers; colour runs from worst to best."""
    numbers = [[float("nan") if cell.number is None else cell.number for cell in row] for row in grid]
    axes.imshow(numbers, cmap="viridis" if metric.better >= 0 else "viridis_r", aspect="auto")
    for y, row in enumerate(grid):
        for x, cell in enumerate(row):
            axes.text(
                x,
                y,
                cell.text,
                ha="center",
                va="center",
                fontsize=7,
                color="white",
                bbox={"facecolor": "black", "alpha": 0.35, "pad": 1, "linewidth": 0},
            )


def _point(records: Sequence[CellRecord], at: dict[str, Any], metric: Metric) -> Value:
    """The metric at a coordinate, averaged over what the coordinate leaves open, once every task is there."""
    here = [record for record in records if record.matches(at)]
    tasks = 1 if "task" in at else len({record.task for record in records})
    return complete(here, metric, tasks)


def _error_bars(values: Sequence[Value]) -> list[list[float]] | None:
    if any(value.interval is None or value.number is None for value in values):
        return None
    ends = [
        (v.number - v.interval[0], v.interval[1] - v.number)
        for v in values
        if v.interval and v.number is not None
    ]
    return [[max(0.0, low) for low, _ in ends], [max(0.0, high) for _, high in ends]]


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _finish(figure: Figure, axes: Axes, metric: Metric, across: str) -> Figure:
    axes.set_xlabel(across)
    axes.set_ylabel(metric.title)
    axes.legend(fontsize=8, frameon=False)
    return figure
