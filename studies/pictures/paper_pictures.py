"""The paper's figures, redrawn: what it printed for LLaDA-8B and Dream-7B beside the built-in models.

    python -m studies.pictures.paper_pictures runs/full docs/img

`runs/full` has a folder for each family, `llada` and `dream`, where the `tiny-*` sweeps of the paper's tables were run:
by `voidpad sweep tiny-table1 --out runs/full/llada` and so on. A figure whose sweep is missing or unfinished is left
out and named.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.paper.numbers import Paper, published
from voidpad.builtin.tasks import CANVAS
from voidpad.diagnose.plots import BLUE, GREEN, GREY, LOOK, ORANGE, RED, save
from voidpad.experiments.report.frame import column, combined, ordered, read, select
from voidpad.experiments.report.layout import METRICS, SUFFIX

FAMILIES = {"llada": "built-in, LLaDA family", "dream": "built-in, Dream family"}
PAPER_CANVAS = 512
BLOCKS = "tiny-appendix-blocks"
# Of each padding, the method that stops at EOS.
STOPPED = {"original": "original-term", "rainbow": "rainbow-term", "void": "void"}
COLOURS = {
    "original": RED,
    "rainbow": ORANGE,
    "void": GREEN,
    "daedal": ORANGE,
    "rho-eos": GREY,
    "void-expansion": BLUE,
}
LABELS = {
    "original": "EOS padding (original)",
    "rainbow": "Rainbow padding",
    "void": "VOID padding",
    "daedal": "DAEDAL",
    "rho-eos": "rho-EOS",
    "void-expansion": "VoidExpansion",
}
SHORT = {
    "original": "EOS\npadding",
    "rainbow": "Rainbow\npadding",
    "void": "VOID\npadding",
    "daedal": "DAEDAL",
    "rho-eos": "rho-EOS",
    "void-expansion": "Void-\nExpansion",
}
HEAT_SPAN = 0.3  # the colours of a heat map span this share of its largest value, so that small differences look small


class Unfinished(Exception):
    """A sweep that a figure needs is missing, or has cells without results."""


@dataclass(frozen=True)
class Point:
    """A mean over tasks, and how far its 95 % interval reaches below and above it; printed numbers have none."""

    mean: float
    below: float = 0.0
    above: float = 0.0

    def times(self, scale: float) -> "Point":
        return Point(scale * self.mean, scale * self.below, scale * self.above)


class Sweeps:
    """The finished sweeps of one family's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, pd.DataFrame] = {}

    def rows(self, recipe: str) -> pd.DataFrame:
        """The cells of a sweep, read once."""
        if recipe not in self._rows:
            path = self.folder / f"{recipe}{SUFFIX}"
            if not path.is_file():
                raise Unfinished(f"{path} is missing")
            (source,) = read(path)
            self._rows[recipe] = source.frame
        return self._rows[recipe]

    def point(self, recipe: str, metric: str = "score", **at: Any) -> Point:
        """The mean over tasks of the cells at these settings."""
        value = combined(select(self.rows(recipe), at), metric)
        if value.number is None:
            raise Unfinished(f"{self.folder / recipe}: cells at {at} have no results")
        low, high = value.interval or (value.number, value.number)
        return Point(value.number, max(0.0, value.number - low), max(0.0, high - value.number))

    def values(self, recipe: str, name: str, **at: Any) -> list[Any]:
        """The values of a setting in these cells, in ascending order."""
        return ordered(column(select(self.rows(recipe), at), name))

    def problems(self, recipe: str) -> str:
        """How many problems a setting has, all tasks together, for a panel's title."""
        rows = self.rows(recipe)
        sizes = sorted(rows["n"].dropna().astype(int).unique()) if "n" in rows else []
        if not sizes:
            raise Unfinished(f"{self.folder / recipe}: no cell has results")
        return " or ".join(str(rows["task"].nunique() * size) for size in sizes)


Families = Mapping[str, Sweeps]


def lines(
    axes: Axes,
    x: Sequence[Any],
    series: Mapping[str, Sequence[Point]],
    looks: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """A line for each method over evenly spaced settings; `looks` has (colour, label) for keys that are no methods."""
    for place, (method, points) in enumerate(series.items()):
        colour, label = looks[method] if looks else (COLOURS[method], LABELS[method])
        ticks = [tick + 0.06 * (place - (len(series) - 1) / 2) for tick in range(len(x))]
        bars = [[point.below for point in points], [point.above for point in points]]
        style = {"color": colour, "marker": "o", "markersize": 5, "linewidth": 1.8, "capsize": 2}
        axes.errorbar(ticks, [point.mean for point in points], bars, label=label, elinewidth=1, **style)
    axes.set_xticks(range(len(x)), [str(value) for value in x])


def bars(axes: Axes, series: Mapping[str, Point]) -> None:
    """A bar for each method, with its value on it."""
    for place, (method, point) in enumerate(series.items()):
        reach = [[point.below], [point.above]] if point.below or point.above else None
        axes.bar(place, point.mean, 0.7, yerr=reach, color=COLOURS[method], capsize=2, alpha=0.9)
        axes.annotate(
            f"{point.mean:.0f}", (place, point.mean + point.above), ha="center", va="bottom", fontsize=8
        )
    axes.set_xticks(range(len(series)), [SHORT[method] for method in series], fontsize=8)
    axes.set_ylim(0, 112)


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.grid(axis="y", alpha=0.25)
    return figure, [list(row) for row in grid]


def blocks(paper: Paper, families: Families) -> Figure:
    """Tables 1 and 2: right answers and passes by block size; the built-in models stop at EOS under every padding."""
    figure, (scores, passes) = panels(2, 4, 13, 5.6)
    shown = (("llada", "table1-llada", "LLaDA-8B"), ("dream", "table1-dream", "Dream-7B"))
    for at, (family, name, title) in enumerate(shown):
        left, right = 2 * at, 2 * at + 1
        sheet, nfe = paper.sheet(name), paper.sheet(f"fig-nfe-{family}").row("mean")
        rows = {
            method: [Point(value) for value in sheet.row("mean", method)]
            for method in ("original", "rainbow", "void")
        }
        lines(scores[left], sheet.columns, rows)
        scores[left].set_title(f"{title}, the paper")
        whole = [Point(100.0)] * len(sheet.columns)
        saved = [Point(100 * value / PAPER_CANVAS) for value in nfe]
        lines(passes[left], sheet.columns, {"original": whole, "rainbow": whole, "void": saved})
        sweeps = families[family]
        sizes = sweeps.values(BLOCKS, "block")
        for axes, metric, scale in ((scores[right], "score", 1.0), (passes[right], "nfe", 100 / CANVAS)):
            series = {
                method: [
                    sweeps.point(BLOCKS, metric, method=stopped, block=size).times(scale) for size in sizes
                ]
                for method, stopped in STOPPED.items()
            }
            lines(axes, sizes, series)
        scores[right].set_title(f"{FAMILIES[family]}, {sweeps.problems(BLOCKS)} problems")
    for axes in scores:
        axes.set_ylim(0, 104)
    for axes in passes:
        axes.set_ylim(0, 108)
        axes.set_xlabel("block size")
    scores[0].set_ylabel("right answers, %")
    passes[0].set_ylabel("passes, % of the canvas")
    scores[1].legend(frameon=False, loc="lower left", fontsize=8)
    return figure


def stopping(paper: Paper, families: Families) -> Figure:
    """Table 5: passes when decoding stops at EOS, mean over block sizes. Without that rule all slots are written."""
    figure, (row,) = panels(1, 3, 11, 3.2)
    row[0].set_title("LLaDA-8B, the paper")
    bars(row[0], {method: Point(100.0 - paper.table5.rows[method].printed[3]) for method in STOPPED})
    for axes, (family, title) in zip(row[1:], FAMILIES.items(), strict=True):
        sweeps = families[family]
        share = {
            method: sweeps.point(BLOCKS, "nfe", method=stopped).times(100 / CANVAS)
            for method, stopped in STOPPED.items()
        }
        bars(axes, share)
        axes.set_title(f"{title}, {sweeps.problems(BLOCKS)} problems")
    for axes in row:
        axes.axhline(100, color=GREY, linewidth=1, linestyle="--")
    row[0].set_ylabel("passes, % of the canvas")
    return figure


def short(paper: Paper, families: Families) -> Figure:
    """Tables 3 and 4, and the large-block stress: right answers from a short initial canvas."""
    figure, (start, stress) = panels(2, 4, 13.5, 5.8)
    for axes, name, title in ((start[0], "table3a", "LLaDA-8B"), (start[2], "table4", "Dream-7B")):
        sheet = paper.sheet(name)
        order = ("original", "void", "rho-eos", "daedal", "void-expansion")
        present = {names["method"] for names, _ in sheet.rows()}
        bars(axes, {m: Point(sheet.at(m, column="mean")) for m in order if m in present})
        axes.set_title(f"{title}, the paper: canvas 64")
    for axes, family, recipe in ((start[1], "llada", "tiny-table3"), (start[3], "dream", "tiny-table3")):
        sweeps = families[family]
        order = ("original", "void", "rho-eos", "daedal", "void-expansion")
        bars(axes, {method: sweeps.point(recipe, method=method) for method in order})
        axes.set_title(f"{FAMILIES[family]}: canvas 32, {sweeps.problems(recipe)} problems", fontsize=9)
    large = ("rho-eos", "daedal", "void-expansion")
    sheet = paper.sheet("fig-stress")
    bars(stress[0], {method: Point(sheet.at(method, column="mean")) for method in large})
    stress[0].set_title("LLaDA-8B, the paper: start and block 256")
    for axes, family in ((stress[1], "llada"), (stress[3], "dream")):
        sweeps = families[family]
        bars(axes, {method: sweeps.point("tiny-stress", method=method) for method in large})
        title = f"{FAMILIES[family]}: 96, {sweeps.problems('tiny-stress')} problems"
        axes.set_title(title, fontsize=9)
    stress[2].axis("off")
    for row in (start, stress):
        row[0].set_ylabel("right answers, %")
    return figure


def thresholds(paper: Paper, families: Families) -> Figure:
    """The threshold heat maps: mean score and passes of VoidExpansion."""
    figure, grid = panels(2, 3, 11, 6.2)
    for row, metric in zip(grid, ("score", "nfe"), strict=True):
        sheet = paper.sheet(f"fig-thresholds-instruct-{metric}")
        gaps = sorted({names["tau_gap"] for names, _ in sheet.rows() if names["task"] == "mean"}, key=float)
        _heat(row[0], sheet.columns, gaps, [sheet.row("mean", gap) for gap in gaps], metric)
        row[0].set_title(f"LLaDA-8B, the paper: {METRICS[metric].title}")
        for axes, (family, title) in zip(row[1:], FAMILIES.items(), strict=True):
            sweeps, only = families[family], {"method": "void-expansion"}
            across, down = (
                sweeps.values("tiny-thresholds", name, **only) for name in ("tau_nonvoid", "tau_gap")
            )
            values = [
                [
                    sweeps.point("tiny-thresholds", metric, tau_nonvoid=x, tau_gap=y, **only).mean
                    for x in across
                ]
                for y in down
            ]
            _heat(axes, across, down, values, metric)
            axes.set_title(f"{title}, {sweeps.problems('tiny-thresholds')} problems")
    for axes in grid[1]:
        axes.set_xlabel("tau_nonvoid")
    for row in grid:
        row[0].set_ylabel("tau_gap")
    return figure


def _heat(
    axes: Axes, across: Sequence[Any], down: Sequence[Any], values: Sequence[Sequence[float]], metric: str
) -> None:
    axes.grid(False)
    high = max(max(row) for row in values)
    low = (1 - HEAT_SPAN) * high
    axes.imshow(values, cmap="YlGn" if metric == "score" else "YlOrBr", aspect="auto", vmin=low, vmax=high)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            colour = "white" if value > low + 0.7 * (high - low) else "black"
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(across)), [str(value) for value in across])
    axes.set_yticks(range(len(down)), [str(value) for value in down])


def expansion(paper: Paper, families: Families) -> Figure:
    """Window, initial canvas and block of VoidExpansion: score and passes."""
    figure, grid = panels(2, 3, 12, 5.4)
    factors = (("window", "tiny-window"), ("canvas", "tiny-start"), ("block", "tiny-expansion-block"))
    colours = {"llada": BLUE, "dream": ORANGE}
    for place, (factor, recipe) in enumerate(factors):
        for row, metric in zip(grid, ("score", "nfe"), strict=True):
            axes = row[place]
            series, looks = {}, {}
            for family, title in FAMILIES.items():
                sweeps, only = families[family], {"method": "void-expansion"}
                values = sweeps.values(recipe, factor, **only)
                series[family] = [sweeps.point(recipe, metric, **{factor: value}, **only) for value in values]
                looks[family] = (colours[family], f"{title}, {sweeps.problems(recipe)} problems")
            lines(axes, values, series, looks)
            axes.set_ylim(0, 104 if metric == "score" else 1.15 * axes.dataLim.y1)
        printed = paper.table6["start" if factor == "canvas" else factor]
        spans = ((printed.score, "%"), (printed.nfe, "passes"))
        for row, (span, unit) in zip(grid, spans, strict=True):
            said = f"LLaDA-8B, the paper: {span[0]:.1f} to {span[1]:.1f} {unit}"
            row[place].text(0.03, 0.04, said, transform=row[place].transAxes, fontsize=8, color=GREY)
        title = {"window": "window", "canvas": "initial canvas", "block": "block"}[factor]
        grid[0][place].set_title(title)
        grid[1][place].set_xlabel(title)
    grid[0][0].set_ylabel("right answers, %")
    grid[1][0].set_ylabel("passes")
    grid[0][0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.1), fontsize=8)
    return figure


def canvases(paper: Paper, families: Families) -> Figure:
    """Score by canvas length on a fixed canvas of small blocks."""
    figure, (row,) = panels(1, 3, 11.5, 3.3)
    sheet = paper.sheet("fig-canvas")
    lines(row[0], sheet.columns, {"original": [Point(value) for value in sheet.row("mean")]})
    row[0].set_title("LLaDA-8B, the paper: block 32")
    for axes, (family, title) in zip(row[1:], FAMILIES.items(), strict=True):
        sweeps = families[family]
        sizes = sweeps.values("tiny-canvas", "canvas")
        rows = {
            method: [sweeps.point("tiny-canvas", method=method, canvas=size) for size in sizes]
            for method in ("original", "void")
        }
        lines(axes, sizes, rows)
        axes.set_title(f"{title}: block 16, {sweeps.problems('tiny-canvas')} problems", fontsize=9)
    for axes in row:
        axes.set_ylim(0, 104)
        axes.set_xlabel("canvas length")
    row[0].set_ylabel("right answers, %")
    row[1].legend(frameon=False, loc="lower right", fontsize=8)
    return figure


FIGURES: Mapping[str, Callable[[Paper, Families], Figure]] = {
    "blocks": blocks,
    "stopping": stopping,
    "short": short,
    "thresholds": thresholds,
    "expansion": expansion,
    "canvas": canvases,
}


@matplotlib.rc_context(LOOK)  # type: ignore[arg-type]
def draw(runs: Path, out: Path, names: Iterable[str] = FIGURES) -> dict[str, str]:
    """Write `out/paper-NAME.png` for each figure; returns why figures were left out, by name."""
    families = {family: Sweeps(runs / family) for family in FAMILIES}
    out.mkdir(parents=True, exist_ok=True)
    left_out = {}
    for name in names:
        try:
            save(FIGURES[name](published(), families), out / f"paper-{name}.png")
        except Unfinished as why:
            left_out[name] = str(why)
    return left_out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.pictures.paper_pictures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", type=Path, help="folder with a sweep folder for each family")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--only", choices=list(FIGURES), action="append", help="this figure; may be repeated")
    given = parser.parse_args()
    left_out = draw(given.runs, given.out, given.only or FIGURES)
    for name, why in left_out.items():
        print(f"{name}: left out, {why}")
    if left_out:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
