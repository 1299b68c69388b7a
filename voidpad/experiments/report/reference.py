"""Measured beside published: the printed value of a record, and a table of every pair."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from voidpad.experiments.report.published import Number
from voidpad.experiments.report.records import CellRecord
from voidpad.experiments.report.report_metrics import METRICS, Metric, Value, mean_value, task_value


def _printed(record: CellRecord, metric: Metric) -> list[Number]:
    """What was published for this model, method, task and setting: one number per place."""
    paper = record.published
    if paper is None:
        return []
    name = paper.model_of(record.model) or paper.model_of(record.settings["model"])
    if name is None:
        return []
    task = record.task.removesuffix("_974")  # the paper calls both of its MBPP test sets MBPP
    return paper.find((metric.name, name, record.method, task), record.at)


def published_mean(records: Sequence[CellRecord], metric: Metric) -> Value:
    """The published numbers of these records, combined as ours are; unknown if one is not printed.

    Where a measurement is printed twice, the first place counts: tables come before figures.
    """
    by_task = groupby(sorted(records, key=lambda r: r.task), key=lambda r: r.task)
    means = []
    for _, group in by_task:
        numbers = [_printed(record, metric) for record in group]
        if not all(numbers):
            return Value(decimals=metric.decimals)
        means.append(Value(sum(same[0].value for same in numbers) / len(numbers), metric.decimals))
    return mean_value(means, metric)


class Pair(NamedTuple):
    """One published number and our measurement of the same thing."""

    record: CellRecord
    number: Number
    measured: Value

    @property
    def difference(self) -> float:
        assert self.measured.number is not None
        return self.measured.number - self.number.value

    @property
    def inside(self) -> bool | None:
        """Whether the published score lies in our 95 % interval."""
        if self.measured.interval is None:
            return None
        low, high = self.measured.interval
        return low <= self.number.value <= high

    def __str__(self) -> str:
        """The published number by what it measures, ours with its interval, theirs and the difference."""
        number = self.number
        setting = "".join(f" {name}={value}" for name, value in sorted(number.settings))
        ours = self.measured.text
        if self.measured.interval is not None:
            low, high = self.measured.interval
            ours += f" [{low:.1f}, {high:.1f}]"
        what = f"{number.model} {number.method} {number.task}{setting}"
        return f"{what}: {ours} against {number.value:g} ({self.difference:+.1f})"


def pairs(records: Sequence[CellRecord]) -> list[Pair]:
    """Every published score and NFE that these records measure again."""
    return [
        Pair(record, number, task_value([record], METRICS[name]))
        for name in ("score", "nfe")
        for record in records
        if record.done
        for number in _printed(record, METRICS[name])
    ]
