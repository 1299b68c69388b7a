"""Two runs on the same problems: how far their scores are apart, and which answers changed sides."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError, printable
from voidpad.evaluate.folder import RunFolder, read_run
from voidpad.evaluate.intervals import Interval, mcnemar, mean, paired_bootstrap
from voidpad.experiments.report.pages import html_page, markdown_table, md

Example = dict[str, Any]  # a line of examples.jsonl.gz


@dataclass(frozen=True)
class TaskDifference:
    """One task on the items that both runs answered."""

    task: str
    pairs: tuple[tuple[Example, Example], ...]

    @property
    def scores(self) -> tuple[float, float]:
        """The mean scores of both runs on the shared items, in percent."""
        first, second = zip(*self.pairs, strict=True)
        return 100 * mean([one["score"] for one in first]), 100 * mean([one["score"] for one in second])

    @property
    def interval(self) -> Interval:
        """The paired 95 % interval of second minus first, in points."""
        return paired_bootstrap([100 * (second["score"] - first["score"]) for first, second in self.pairs])

    @property
    def flipped(self) -> list[tuple[Example, Example]]:
        """The items on which the runs' scores differ."""
        return [(first, second) for first, second in self.pairs if first["score"] != second["score"]]


@dataclass(frozen=True)
class RunComparison:
    names: tuple[str, str]  # of the run folders; as much of their paths as tells them apart
    tasks: tuple[TaskDifference, ...]
    settings: tuple[tuple[str, Any, Any], ...]  # (name, first, second) where the runs' configs differ


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Pair two judged run folders by task, item and prompt."""
    runs = [_judged(path) for path in (first, second)]
    lines = [{(one["task"], one["index"]): one for one in run.examples} for run in runs]
    shared = [key for key in lines[0] if key in lines[1]]
    if not shared:
        raise ConfigError(f"compare {first} {second}: no item was answered by both; choose runs of one task.")
    for task, index in shared:
        if lines[0][task, index]["prompt_sha256"] != lines[1][task, index]["prompt_sha256"]:
            raise ConfigError(
                f"compare {first} {second}: item {index} of {task} has two prompts; "
                "use runs with equal shots and templates."
            )
    tasks = [
        TaskDifference(task, tuple((lines[0][key], lines[1][key]) for key in shared if key[0] == task))
        for task in dict.fromkeys(task for task, _ in shared)
    ]
    mine, theirs = (run.config.plain() for run in runs)
    differing = [(name, mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]]
    return RunComparison(_names(first, second), tuple(tasks), tuple(differing))


def _judged(path: Path) -> RunFolder:
    run = read_run(path)
    if not run.complete:
        raise DataError(f"{path}: not judged yet; finish the run, then compare.")
    return run


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The last parts of both paths, as many as make them differ."""
    one, other = first.resolve().parts, second.resolve().parts
    depth = 1
    while one[-depth:] == other[-depth:] and depth < min(len(one), len(other)):
        depth += 1
    return "/".join(one[-depth:]), "/".join(other[-depth:])


def compared_markdown(comparison: RunComparison) -> str:
    """What differs in the settings, a row for each task, and every item that changed sides, with its texts."""
    first, second = map(md, comparison.names)
    lines = [f"# {second} against {first}", ""]
    lines += [md(f"- {name}: {b} against {a}") for name, a, b in comparison.settings]
    heads = ["task", "items", first, second, "difference", "paired 95 %", "lost", "gained", "McNemar p"]
    rows = []
    for task in comparison.tasks:
        (before, after), (low, high) = task.scores, task.interval
        lost = sum(b["score"] < a["score"] for a, b in task.flipped)
        won = len(task.flipped) - lost
        row = [md(task.task), str(len(task.pairs)), f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"]
        rows.append([*row, f"[{low:+.2f}, {high:+.2f}]", str(lost), str(won), f"{mcnemar(lost, won):.3g}"])
    lines += ["", *markdown_table(heads, rows)]
    for task in comparison.tasks:
        for a, b in task.flipped:
            lines += ["", f"## {md(task.task)} {a['index']}: {a['score']:g} to {b['score']:g}"]
            texts = [("prompt", str(a["prompt"])), ("gold", str(a["gold"]))]
            for title, text in [*texts, (first, a["output"]), (second, b["output"])]:
                shown = [printable(line) for line in text.expandtabs().splitlines()] or ["(nothing)"]
                lines += ["", f"{title}:", "", *(f"    {line}" for line in shown)]
    return "\n".join(lines) + "\n"


def compared_html(comparison: RunComparison) -> str:
    first, second = comparison.names
    return html_page(f"{second} against {first}", compared_markdown(comparison))
