"""Measured beside published: every printed score and NFE that the runs of a folder measure again.

python -m studies.paper.measured runs/paper-table1
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from studies.paper.numbers import published
from studies.paper.sheets import Number, PublishedNumbers
from voidpad.experiments.report.frame import Value, combined, frame
from voidpad.experiments.report.pages import md


class Pair(NamedTuple):
    """One published number and our measurement of the same thing."""

    number: Number
    measured: Value

    @property
    def difference(self) -> float:
        assert self.measured.number is not None
        return self.measured.number - self.number.value

    @property
    def inside(self) -> bool | None:
        """Whether the published score lies in our 95 % interval; None for numbers without one."""
        if self.measured.interval is None:
            return None
        low, high = self.measured.interval
        return low <= self.number.value <= high

    @property
    def cells(self) -> list[str]:
        number = self.number
        setting = ", ".join(f"{name}={value}" for name, value in sorted(number.settings))
        low, high = self.measured.interval or (None, None)
        interval = "" if low is None else f" [{low:.1f}, {high:.1f}]"
        names = [number.source, number.model, number.metric, number.task, number.method, setting]
        return [*names, self.measured.text + interval, f"{number.value:g}", f"{self.difference:+.1f}"]


def printed(row: Mapping[str, Any], metric: str, paper: PublishedNumbers) -> list[Number]:
    """What was published for the model, method, task and setting of a row of the frame: one number for each place."""
    name = paper.model_of(row["model"]) or paper.model_of(row["config.model"])
    if name is None:
        return []
    task = row["task"].removesuffix("_974")  # the paper calls both of its MBPP test sets MBPP
    plan = {key.removeprefix("plan."): value for key, value in row.items() if key.startswith("plan.")}
    return paper.find((metric, name, row["method"], task), plan)


def pairs(rows: pd.DataFrame, paper: PublishedNumbers | None = None) -> list[Pair]:
    """Every published score and NFE that these rows of the frame measure again."""
    paper = paper or published()
    found = []
    for metric in ("score", "nfe"):
        for at in range(len(rows)):
            row = rows.iloc[[at]]
            if not row["n"].isna().any():
                numbers = printed(row.to_dict("records")[0], metric, paper)
                found += [Pair(number, combined(row, metric)) for number in numbers]
    return found


def said(compared: Sequence[Pair]) -> str:
    """A table of all pairs as Markdown, after how many published scores lie inside our intervals."""
    judged = [pair.inside for pair in compared if pair.inside is not None]
    lines = [f"{sum(judged)} of {len(judged)} published scores lie inside our 95 % interval.", ""]
    heads = ["source", "model", "metric", "task", "method", "setting", "measured", "paper", "difference"]
    lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(map(md, pair.cells)) + " |" for pair in compared]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m studies.paper.measured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", help="as `voidpad report` takes them")
    print(said(pairs(frame(parser.parse_args().folders))))
