"""Where the paper disagrees with itself: found by rules over the published data, never listed by hand."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

from studies.paper.numbers import Number, Paper, PaperSheet
from studies.paper.recompute import recomputed, table5_mean


class Finding(NamedTuple):
    """One disagreement: the rule that found it, what it is about, the values, and what it means."""

    rule: str
    what: str
    values: dict[str, Any]
    meaning: str


def findings(paper: Paper) -> list[Finding]:
    """All disagreements, rule by rule."""
    rules = (
        differing_sources,
        idle_thresholds,
        test_sets,
        text_after_eos,
        unequal_limits,
        rising_with_block,
        statements,
        wrong_arithmetic,
        rounded_twice,
    )
    return [finding for rule in rules for finding in rule(paper)]


def differing_sources(paper: Paper) -> Iterator[Finding]:
    """One measurement printed with two values."""
    for same in _grouped(paper.numbers, lambda number: number.identity):
        values: dict[str, Any] = {number.sheet: number.value for number in same}
        if len(set(values.values())) == 1:
            continue
        one = same[0]
        size = fitting_size(paper, one.model, one.task)
        if size:
            values["counts"] = [count(number.value, size) for number in same]
        what = f"{paper.models[one.model].title}, {one.method}, {settings_text(one)}: {one.task}"
        yield Finding("differing-sources", what, values, same_generations(paper, one))


def same_generations(paper: Paper, one: Number) -> str:
    """Whether equal NFE shows that only the grading differs."""
    if one.task == "mean":
        return "follows from the tasks"
    passes = [n for n in paper.numbers if n.identity == ("nfe", *one.identity[1:])]
    if len(passes) > 1 and len({number.value for number in passes}) == 1:
        return f"NFE is {passes[0].value} in every place, so the same generations were graded in two ways"
    return "the same setting has two results"


def idle_thresholds(paper: Paper) -> Iterator[Finding]:
    """Cells that differ only in a tau_gap that cannot bind.

    Once s_nonvoid <= tau_nonvoid, s_gap >= -s_nonvoid >= -tau_nonvoid: a tau_gap below that always holds.
    """
    moving = [n for n in paper.numbers if "tau_gap" in n.at]
    idle = [n for n in moving if n.at["tau_gap"] <= -n.at["tau_nonvoid"]]
    for same in _grouped(idle, lambda n: (n.sheet, *n.identity[:4], _without(n, "tau_gap"))):
        values = {f"tau_gap {n.at['tau_gap']}": n.value for n in same}
        if len(set(values.values())) == 1:
            continue
        one = same[0]
        where = f"{paper.models[one.model].title}, {one.task} {one.metric}"
        what = f"{where} at tau_nonvoid {one.at['tau_nonvoid']}"
        meaning = "here tau_gap cannot bind, so a deterministic run prints equal cells: run or build noise"
        yield Finding("idle-thresholds", what, values, meaning)


def test_sets(paper: Paper) -> Iterator[Finding]:
    """A task whose scores only fit different test-set sizes for different families."""
    for task, sizes in paper.sizes.items():
        models = [name for name in paper.models if _scores(paper, name, task)]
        fitting = {name: fitting_size(paper, name, task) for name in models}
        if len({size for size in fitting.values() if size}) > 1:
            meaning = "a model's scores are counts over one of the sets only: columns are not comparable"
            yield Finding("test-sets", f"{task} has several test sets", fitting, meaning)
        for name in (name for name, size in fitting.items() if size is None):
            what = f"{task}, {paper.models[name].title}"
            yield Finding("test-sets", what, {"sizes": list(sizes)}, "no size explains every score")


def fitting_size(paper: Paper, model: str, task: str) -> int | None:
    """The test-set size of which every printed score of the model is a rounded share."""
    scores = _scores(paper, model, task)
    sizes = paper.sizes.get(task, ())
    return next((size for size in sizes if all(attainable(score, size) for score in scores)), None)


def count(score: float, size: int) -> int:
    return round(score * size / 100)


def attainable(score: float, size: int) -> bool:
    """Whether some count over `size` examples prints as this score."""
    return abs(100 * count(score, size) / size - score) <= 0.005 + 1e-9


def _scores(paper: Paper, model: str, task: str) -> set[float]:
    return {n.value for n in paper.numbers if (n.metric, n.model, n.task) == ("score", model, task)}


def text_after_eos(paper: Paper) -> Iterator[Finding]:
    """A stopping rule cannot change the text before the first EOS; a changed score was read after it."""
    sheet = paper.sheet("appendix-blocks-instruct")
    for name, row in paper.table5.rows.items():
        gain = {task: _stop_gain(paper, sheet, task, row.vanilla, row.termination) for task in paper.tasks}
        if max(map(abs, gain.values())) < 0.005:
            continue
        total = table5_mean(paper, row.termination) - table5_mean(paper, row.vanilla)
        what = f"Table 5, {name}: termination changes the score"
        meaning = "both rules write the same text up to the first EOS, so text after it was scored"
        yield Finding("text-after-eos", what, {"mean": round(total, 2), **gain}, meaning)


def _stop_gain(paper: Paper, sheet: PaperSheet, task: str, vanilla: str, termination: str) -> float:
    blocks = paper.table5.blocks
    gains = [sheet.at(task, termination, column=b) - sheet.at(task, vanilla, column=b) for b in blocks]
    return round(sum(gains) / len(gains), 2)


def unequal_limits(paper: Paper) -> Iterator[Finding]:
    """Methods of one sheet that may grow to different lengths."""
    for sheet in paper.sheets:
        limits = {method: settings["limit"] for method, settings in sheet.per.items() if "limit" in settings}
        if sheet.metric == "score" and len(set(limits.values())) > 1:
            yield Finding(
                "unequal-limits",
                f"{sheet.source}: largest canvas",
                limits,
                "the compared methods do not share a cap on the length",
            )


def rising_with_block(paper: Paper) -> Iterator[Finding]:
    """A score that falls with the block overall, yet rises between two blocks beyond sampling noise."""
    for sheet in (s for s in paper.sheets if s.metric == "score" and s.across == "block"):
        for names, _ in sheet.rows():
            size = fitting_size(paper, sheet.model, names["task"])
            if size is None:
                continue
            values = sheet.row(*names.values())
            if any(rises(*pair, size) for pair in pairwise(values)) and rises(values[-1], values[0], size):
                what = f"{paper.models[sheet.model].title}, {names['task']}, {names['method']}"
                printed = {f"B{block}": value for block, value in zip(sheet.columns, values, strict=True)}
                yield Finding("rising-with-block", what, printed, "not monotone in the block, not explained")


def rises(first: float, second: float, size: int) -> bool:
    """Whether the second score is larger beyond the 95 % interval of the difference."""
    spread = sum(p / 100 * (1 - p / 100) / size for p in (first, second))
    return second - first > 196 * sqrt(spread)


def statements(paper: Paper) -> Iterator[Finding]:
    """A setting stated in two ways."""
    for said in paper.statements:
        if len({str(value) for value in said.values.values()}) > 1:
            yield Finding("statements", said.what, said.values, said.effect)


def wrong_arithmetic(paper: Paper) -> Iterator[Finding]:
    """A derived number that does not follow from the printed ones."""
    for check in recomputed(paper):
        if not check.agrees:
            values = {"printed": check.printed, "recomputed": check.recomputed}
            yield Finding("wrong-arithmetic", check.what, values, "does not follow from the printed values")


def rounded_twice(paper: Paper) -> Iterator[Finding]:
    """A derived number that is off by one in the last place because rounded values were averaged."""
    for check in recomputed(paper):
        if check.rounded_twice:
            values = {"printed": check.printed, "recomputed": round(check.recomputed, 3)}
            yield Finding("rounded-twice", check.what, values, "a mean of means that were already rounded")


def settings_text(number: Number) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(number.settings))


def _without(number: Number, name: str) -> frozenset[tuple[str, Any]]:
    return frozenset(pair for pair in number.settings if pair[0] != name)


def _grouped(numbers: Iterable[Number], key: Any) -> list[list[Number]]:
    groups: dict[Any, list[Number]] = defaultdict(list)
    for number in numbers:
        groups[key(number)].append(number)
    return [group for group in groups.values() if len(group) > 1]
