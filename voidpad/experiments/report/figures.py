"""Layouts and rows of the frame -> heat maps, bar charts and lines, as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from voidpad.errors import ConfigError
from voidpad.experiments.report.frame import Value, column, combined, graded, ordered, select
from voidpad.experiments.report.layout import METRICS, FigureLayout

# Text stays text, ids stay the same and there is no date, so that equal results give equal files.
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
    file: str  # where a report keeps it
    title: str
    svg: bytes


def plots(layout: FigureLayout, rows: pd.DataFrame, name: str = "runs") -> list[Plot]:
    """One plot for each model that the layout selects; the files' names begin with `name`."""
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
            drawing = BytesIO()
            figure.savefig(drawing, format="svg", metadata={"Date": None})
        words = "".join(mark.lower() if mark.isalnum() else " " for mark in title).split()
        drawn.append(Plot(f"figures/{name}-{'-'.join(words)}.svg", title, drawing.getvalue()))
    return drawn


def _value(rows: pd.DataFrame, layout: FigureLayout, x: Any, by: Any) -> Value:
    """The metric at a coordinate, averaged over what the coordinate leaves open, once every task is there."""
    here = rows[(rows["at.x"] == x) & (rows["at.by"] == by)]
    tasks = 1 if "task" in (layout.x, layout.by) else rows["task"].nunique()
    return combined(here, layout.metric, tasks)


def _along(layout: FigureLayout, rows: pd.DataFrame) -> Figure:
    """Bars side by side in groups, or lines."""
    xs, names = ordered(rows["at.x"]), ordered(rows["at.by"])
    bars, width = layout.kind == "bars", 0.8 / len(names)
    wide = max(5.0, 0.35 * len(xs) * len(names) + 2) if bars else 5.0
    figure = Figure(figsize=(wide, 3.4), layout="constrained")
    axes = figure.subplots()
    for at, name in enumerate(names):
        values = [_value(rows, layout, x, name) for x in xs]
        heights = [float("nan") if value.number is None else value.number for value in values]
        if bars:
            centres = [place + (at - (len(names) - 1) / 2) * width for place in range(len(xs))]
            ends = [value.interval or (height, height) for value, height in zip(values, heights, strict=True)]
            below = [max(0.0, height - low) for height, (low, _) in zip(heights, ends, strict=True)]
            above = [max(0.0, high - height) for height, (_, high) in zip(heights, ends, strict=True)]
            error = [below, above] if any(below + above) else None
            axes.bar(centres, heights, width, label=str(name), yerr=error, capsize=2)
        else:
            axes.plot(xs, heights, marker="o", label=str(name))
    axes.set_xticks(range(len(xs)) if bars else xs, [str(x) for x in xs])
    axes.set_yscale("log" if bars and layout.log else "linear")
    axes.set(xlabel=layout.x, ylabel=METRICS[layout.metric].title)
    axes.legend(fontsize=8, frameon=False)
    return figure


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
        axes.set(xlabel=layout.x, ylabel=layout.by)
    return figure
