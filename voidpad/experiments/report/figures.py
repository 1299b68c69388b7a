"""Layouts and rows of the frame -> heat maps, bar charts and lines, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from voidpad.errors import ConfigError
from voidpad.experiments.report.frame import Value, column, combined, graded, ordered, select
from voidpad.experiments.report.layout import METRICS, FigureLayout

# Text stays text and ids stay the same, so that equal results give equal files.
LOOK: Any = {
    "svg.hashsalt": "voidpad",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
# Of a number in a heat map: readable on every colour.
NUMBER: Any = {
    "ha": "center",
    "va": "center",
    "fontsize": 7,
    "bbox": {"facecolor": "black", "alpha": 0.35, "pad": 1, "linewidth": 0},
}


@dataclass(frozen=True)
class Plot:
    name: str
    title: str
    svg: bytes

    @property
    def file(self) -> str:
        """Where a report keeps it."""
        return f"figures/{self.name}.svg"


def plots(layout: FigureLayout, rows: pd.DataFrame) -> list[Plot]:
    """One plot for each model that the layout selects."""
    rows = graded(select(rows, layout.where), layout.grader)
    if rows.empty:
        raise ConfigError(f"figure {layout.title!r}: no finished run matches where={layout.where}.")
    rows = rows.assign(**{"at.x": column(rows, layout.x), "at.by": column(rows, layout.by)})
    models, drawn = ordered(rows["model"]), []
    for model in models:
        mine = rows[rows["model"] == model]
        title = f"{layout.title}: {model}" if len(models) > 1 else layout.title
        with matplotlib.rc_context(LOOK):
            figure = _heat(layout, mine) if layout.kind == "heat" else _along(layout, mine)
            figure.suptitle(title)
            svg = svg_bytes(figure)
        words = "".join(mark.lower() if mark.isalnum() else " " for mark in title).split()
        drawn.append(Plot("-".join(words), title, svg))
    return drawn


def svg_bytes(figure: Figure) -> bytes:
    """The figure as an SVG file without a date."""
    out = BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _value(rows: pd.DataFrame, layout: FigureLayout, x: Any, by: Any) -> Value:
    """The metric at a coordinate, averaged over what the coordinate leaves open, once every task is there."""
    here = rows[(rows["at.x"] == x) & (rows["at.by"] == by)]
    tasks = 1 if "task" in (layout.x, layout.by) else rows["task"].nunique()
    return combined(here, layout.metric, tasks)


def _along(layout: FigureLayout, rows: pd.DataFrame) -> Figure:
    """Bars side by side in groups, or lines."""
    xs, names = ordered(rows["at.x"]), ordered(rows["at.by"])
    bars = layout.kind == "bars"
    wide = max(5.0, 0.35 * len(xs) * len(names) + 2) if bars else 5.0
    figure = Figure(figsize=(wide, 3.4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for at, name in enumerate(names):
        values = [_value(rows, layout, x, name) for x in xs]
        if bars:
            centres = [place + (at - (len(names) - 1) / 2) * width for place in range(len(xs))]
            heights = [value.number or 0.0 for value in values]
            axes.bar(centres, heights, width, label=str(name), yerr=_error_bars(values), capsize=2)
        else:
            known = [
                (x, value.number) for x, value in zip(xs, values, strict=True) if value.number is not None
            ]
            axes.plot([x for x, _ in known], [y for _, y in known], marker="o", label=str(name))
    if bars:
        axes.set_xticks(range(len(xs)), [str(x) for x in xs])
        axes.set_yscale("log" if layout.log else "linear")
    else:
        axes.set_xticks(xs)
    axes.set_xlabel(layout.x)
    axes.set_ylabel(METRICS[layout.metric].title)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _error_bars(values: Sequence[Value]) -> list[list[float]] | None:
    lows, highs = [], []
    for value in values:
        if value.number is None or value.interval is None:
            return None
        lows.append(max(0.0, value.number - value.interval[0]))
        highs.append(max(0.0, value.interval[1] - value.number))
    return [lows, highs]


def _heat(layout: FigureLayout, rows: pd.DataFrame) -> Figure:
    """A map for each task and one of the mean; colour runs from worst to best."""
    metric = METRICS[layout.metric]
    xs, ys = ordered(rows["at.x"]), ordered(rows["at.by"])
    panels = [(task, rows[rows["task"] == task]) for task in ordered(rows["task"])] + [("mean", rows)]
    figure = Figure(figsize=(2.6 * len(panels), 2.9), layout="constrained")
    for axes, (name, inside) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        grid = [[_value(inside, layout, x, y) for x in xs] for y in ys]
        numbers = [[float("nan") if cell.number is None else cell.number for cell in line] for line in grid]
        axes.imshow(numbers, cmap="viridis" if metric.better >= 0 else "viridis_r", aspect="auto")
        for y, line in enumerate(grid):
            for x, cell in enumerate(line):
                axes.text(x, y, cell.text, color="white", **NUMBER)
        axes.set_title(f"{name} {metric.title}", fontsize=9)
        axes.set_xticks(range(len(xs)), [str(x) for x in xs])
        axes.set_yticks(range(len(ys)), [str(y) for y in ys])
        axes.set_xlabel(layout.x)
        axes.set_ylabel(layout.by)
    return figure
