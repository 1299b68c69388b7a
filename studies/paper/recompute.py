"""Every derived number of the paper, computed again from the numbers it is derived from."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, geometric_mean
from typing import NamedTuple

from studies.paper.numbers import Paper, PaperSheet


def reduction(nfe: float, budget: float) -> float:
    """Percent of the step budget that was not spent."""
    return 100 * (1 - nfe / budget)


class Check(NamedTuple):
    """A printed derived number beside our own computation of it."""

    what: str
    printed: float
    recomputed: float
    slack: float  # what rounding the inputs and the result can explain

    @property
    def agrees(self) -> bool:
        return abs(self.printed - self.recomputed) <= self.slack + 1e-9

    @property
    def rounded_twice(self) -> bool:
        """Explained by rounding, but not the nearest printable value: rounded values were averaged again."""
        return self.agrees and abs(self.printed - self.recomputed) > self.slack / 2 + 1e-6


SUMMARY: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "geomean": geometric_mean,
    "best": max,
    "worst": min,
}


def recomputed(paper: Paper) -> list[Check]:
    """All checks, in the order of the paper's items."""
    checks: list[Check] = []
    for sheet in paper.sheets:
        checks += summary_columns(sheet)
        checks += mean_rows(sheet, paper.tasks)
    checks += [*reductions(paper), *speedups(paper), *stopping(paper), *spreads(paper), *claims(paper)]
    return checks


def rounding(decimals: int) -> float:
    """Half a unit of the inputs plus half a unit of the result."""
    return 10.0**-decimals


def summary_columns(sheet: PaperSheet) -> Iterator[Check]:
    """Mean, geometric mean, best and worst over the measured columns."""
    width = len(sheet.columns)
    for names, values in sheet.rows():
        for name, printed in zip(sheet.summary, values[width:], strict=True):
            what = f"{sheet.id}: {' '.join(names.values())} {name}"
            yield Check(what, printed, SUMMARY[name](values[:width]), rounding(sheet.decimals))


def mean_rows(sheet: PaperSheet, tasks: Sequence[str]) -> Iterator[Check]:
    """The rows called `mean` are unweighted means over the tasks."""
    if "task" not in sheet.levels:
        return
    rows = {tuple(names.values()): values for names, values in sheet.rows()}
    place = sheet.levels.index("task")
    for path in [path for path in rows if path[place] == "mean"]:
        members = [rows[(*path[:place], task, *path[place + 1 :])] for task in tasks]
        for at, column in enumerate((*sheet.columns, *sheet.summary)):
            mean = fmean(row[at] for row in members)
            what = f"{sheet.id}: {' '.join(path)} over tasks, {sheet.across} {column}"
            yield Check(what, rows[path][at], mean, rounding(sheet.decimals))


def reductions(paper: Paper) -> Iterator[Check]:
    """NFE reductions against the step budget, which is the canvas; NFE first averaged over the blocks."""
    for result, figure in (("table2-reduction", "fig-nfe-dream"), ("readme-reduction", "fig-nfe-llada")):
        printed, nfe = paper.sheet(result), paper.sheet(figure)
        budget = float(printed.settings["canvas"])
        for task in paper.tasks:
            mean = reduction(fmean(nfe.row(task)), budget)
            yield Check(f"{result}: {task}", printed.at("void", column=task), mean, rounding(1))
    printed, nfe = paper.sheet("table2-nfe"), paper.sheet("fig-nfe-dream")
    for task in paper.tasks:
        yield Check(f"table2-nfe: {task}", printed.at("void", column=task), fmean(nfe.row(task)), rounding(1))
    overall = fmean(paper.sheet("table2-reduction").row("void"))
    yield Check("abstract: Dream NFE reduction", paper.abstract.dream_nfe_reduction, overall, rounding(1))


def speedups(paper: Paper) -> Iterator[Check]:
    """Seconds of DAEDAL over seconds of the method; their mean is geometric."""
    printed, wall = paper.sheet("table3b-speedup"), paper.sheet("fig-wall")
    base = wall.row("daedal")
    for names, _ in wall.rows():
        method = names["method"]
        ratios = [slow / own for slow, own in zip(base, wall.row(method), strict=True)]
        for task, ratio in zip(paper.tasks, ratios, strict=True):
            value = printed.at(method, column=task)
            yield Check(f"table3b-speedup: {method} {task}", value, ratio, rounding(2))
        mean = printed.at(method, column="geomean")
        yield Check(f"table3b-speedup: {method} mean from seconds", mean, geometric_mean(ratios), rounding(2))


def stopping(paper: Paper) -> Iterator[Check]:
    """Table 5 from the cells of the appendix's block table."""
    for name, row in paper.table5.rows.items():
        vanilla, termination = (table5_mean(paper, method) for method in (row.vanilla, row.termination))
        yield Check(f"table5: {name} vanilla", row.printed[0], vanilla, rounding(2))
        yield Check(f"table5: {name} termination", row.printed[1], termination, rounding(2))
        yield Check(f"table5: {name} difference", row.printed[2], termination - vanilla, rounding(2))
    nfe = paper.sheet("fig-nfe-llada")
    mean = reduction(fmean(nfe.row("mean")), float(nfe.settings["canvas"]))
    yield Check("table5: void NFE reduction", paper.table5.rows["void"].printed[3], mean, rounding(1))


def table5_mean(paper: Paper, method: str) -> float:
    """Mean of a method over tasks and Table 5's blocks, from the cells."""
    sheet = paper.sheet("appendix-blocks-instruct")
    blocks = paper.table5.blocks
    return fmean(sheet.at(task, method, column=block) for task in paper.tasks for block in blocks)


def spreads(paper: Paper) -> Iterator[Check]:
    """Table 6: the ranges of the sweeps whose numbers are printed."""
    for name, spread in paper.table6.items():
        for sheet in map(paper.sheet, spread.sheets):
            means = [value for names, values in sheet.rows() if names["task"] == "mean" for value in values]
            low, high = spread.score if sheet.metric == "score" else spread.nfe
            yield Check(f"table6: {name} smallest {sheet.metric}", low, min(means), 0)
            yield Check(f"table6: {name} largest {sheet.metric}", high, max(means), 0)


def claims(paper: Paper) -> Iterator[Check]:
    """Differences stated in the text."""
    for claim in paper.claims:
        high, low = (paper.sheet(claim.sheet).at(*row, column=claim.column) for row in claim.rows)
        yield Check(f"claim: {claim.what}", claim.value, high - low, rounding(2))
