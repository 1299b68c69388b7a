"""What can be tabulated, and how values of several runs combine into one, with a 95 % interval."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod, sqrt
from statistics import fmean
from typing import Any

from voidpad.evaluate.scores import wilson
from voidpad.experiments.report.records import CellRecord, plan_label

Interval = tuple[float, float]


@dataclass(frozen=True)
class Metric:
    """A column's meaning. `better`: +1 where larger wins, -1 where smaller wins, 0 where unranked."""

    name: str
    title: str
    decimals: int
    better: int
    of: Callable[[CellRecord], float | None]
    combine: Callable[[Sequence[float]], float] = fmean


@dataclass(frozen=True)
class Value:
    """One cell: the number, its interval where it is a share of examples, and its place in its column."""

    number: float | None = None
    decimals: int = 2
    interval: Interval | None = None
    place: int = 0  # 1 best, 2 second best
    blank: bool = False  # there is nothing to measure here

    @property
    def text(self) -> str:
        if self.number is None:
            return "" if self.blank else "–"
        return f"{self.number:.{self.decimals}f}"


def geomean(values: Sequence[float]) -> float:
    return prod(values) ** (1 / len(values))


def reduction(nfe: float, budget: float) -> float:
    """Percent of the step budget that was not spent."""
    return 100 * (1 - nfe / budget)


def _from(name: str, scale: float = 1.0) -> Callable[[CellRecord], float]:
    return lambda record: scale * record.result[name]


def _saved(record: CellRecord) -> float | None:
    """Percent saved of the passes to the end of a fixed canvas; lengths that adapt have no such number."""
    if {"limit", "tau"} & record.at.keys():
        return None
    return reduction(record.result["passes_decode"], record.at["steps"])


def slot_passes(record: CellRecord) -> float | None:
    """Canvas slots summed over all passes, probes included, per example; None where a pass may skip slots.

    VoidExpansion probes at every length on its way, one block apart; its last probe is also its first decoding pass.
    """
    plan, approximations = (
        plan_label(record.settings).partition("@")[0],
        record.provenance.get("approximations", []),
    )
    if record.settings.get("cache") or "trim" in approximations:
        return None
    if plan not in ("original", "rainbow", "eos", "void", "void-expansion"):
        return None
    costs = []
    for one in record.examples:
        probes, decoded = one["passes_probe"], one["passes_decode"] - one["passes_shared"]
        shorter = record.at["block"] * (probes * (probes - 1) // 2)  # slots that earlier probes did not have
        costs.append(one["canvas"] * (decoded + probes) - shorter)
    return fmean(costs)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("score", "Score (%)", 2, +1, lambda r: 100 * r.result["correct"] / r.result["n"]),
        Metric("nfe", "NFE", 2, -1, _from("passes_decode")),
        Metric("nfe_reduction", "NFE reduction (%)", 1, +1, _saved),
        Metric("probes", "Probes", 2, -1, _from("passes_probe")),
        Metric("passes", "All passes", 2, -1, _from("passes_total")),
        Metric("canvas", "Canvas", 1, 0, _from("canvas")),
        Metric("answer", "Answer tokens", 1, 0, _from("answer_tokens")),
        Metric("slot_passes", "Slot-passes", 0, -1, slot_passes),
        Metric("at_cap", "At cap (%)", 1, -1, _from("share_at_cap", 100)),
        Metric("without_eos", "Without EOS (%)", 1, -1, _from("share_without_eos", 100)),
        Metric("wall", "Wall (s)", 1, -1, lambda r: r.wall),
        Metric("speedup", "Wall speed-up", 2, +1, lambda r: r.wall, geomean),
    )
}


def combined(records: Sequence[CellRecord], metric: Metric) -> Value:
    """The metric over runs: averaged over settings within a task, then unweighted over tasks."""
    by_task = [
        list(group) for _, group in groupby(sorted(records, key=lambda r: r.task), key=lambda r: r.task)
    ]
    return mean_value([task_value(group, metric) for group in by_task], metric)


def task_value(records: Sequence[CellRecord], metric: Metric) -> Value:
    """The mean over runs of one task."""
    numbers = [metric.of(record) if record.done else None for record in records]
    known = [number for number in numbers if number is not None]
    if not records or len(known) < len(numbers):
        return Value(decimals=metric.decimals)
    interval = _task_interval(records) if metric.name == "score" else None
    return Value(fmean(known), metric.decimals, interval)


def _task_interval(records: Sequence[CellRecord]) -> Interval:
    """Wilson's interval. Runs averaged over the same examples spread no wider than one run of that mean."""
    size = min(record.result["n"] for record in records)
    share = fmean(record.result["correct"] / record.result["n"] for record in records)
    low, high = wilson(share * size, size)
    return 100 * low, 100 * high


def mean_value(values: Sequence[Value], metric: Metric) -> Value:
    """The metric's own mean of cells: unknown when one of them is unknown."""
    numbers = [value.number for value in values if value.number is not None]
    if not values or len(numbers) < len(values):
        return Value(decimals=metric.decimals)
    return Value(metric.combine(numbers), metric.decimals, mean_interval(values))


def mean_interval(values: Sequence[Value]) -> Interval | None:
    """The interval of a mean of independent tasks, from their own intervals (Zou and Donner's MOVER)."""
    known = [
        (value.number, value.interval) for value in values if value.number is not None and value.interval
    ]
    if len(known) < len(values):
        return None
    mean = fmean(number for number, _ in known)
    down = sqrt(sum((number - low) ** 2 for number, (low, _) in known)) / len(known)
    up = sqrt(sum((high - number) ** 2 for number, (_, high) in known)) / len(known)
    return mean - down, mean + up


def ranked(column: Sequence[Value], better: int) -> list[Value]:
    """The column with its best and second-best values marked; values that print alike share a place."""
    printed = {round(better * v.number, v.decimals) for v in column if v.number is not None}
    if better == 0 or len(printed) < 2:
        return list(column)
    order = sorted(printed, reverse=True)[:2]
    return [replace(value, place=_place(value, better, order)) for value in column]


def _place(value: Value, better: int, order: Sequence[float]) -> int:
    if value.number is None:
        return 0
    printed = round(better * value.number, value.decimals)
    return order.index(printed) + 1 if printed in order else 0


def ordered(values: Iterable[object]) -> list[Any]:
    """Distinct values: numbers ascending, anything else as first met."""
    distinct = list(dict.fromkeys(values))
    return sorted(distinct) if all(isinstance(v, (int, float)) for v in distinct) else distinct
