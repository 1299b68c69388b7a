"""Two runs on the same problems: how far their scores are apart, and which answers changed sides."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError, printable
from voidpad.evaluate.folder import RunFolder, read_run
from voidpad.evaluate.scores import mean, paired
from voidpad.experiments.report.render import escape, html_page, md

Example = dict[str, Any]  # a line of examples.jsonl
HEADS = ("task", "items", "first", "second", "difference, paired 95 %", "lost", "gained")


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
    def difference(self) -> tuple[float, float]:
        """Second minus first in points, and half the paired 95 % interval."""
        return paired([100 * (second["score"] - first["score"]) for first, second in self.pairs])

    @property
    def flipped(self) -> list[tuple[Example, Example]]:
        """The items on which the runs' scores differ."""
        return [(first, second) for first, second in self.pairs if first["score"] != second["score"]]


@dataclass(frozen=True)
class RunComparison:
    names: tuple[str, str]
    tasks: tuple[TaskDifference, ...]
    settings: tuple[tuple[str, Any, Any], ...]  # (name, first, second) where the runs' settings differ


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Pair two judged run folders by task, item and prompt."""
    runs = [_judged(path) for path in (first, second)]
    names = (str(first), str(second))
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
    mine, theirs = (run.stored_settings for run in runs)
    differing = [
        (name, mine.get(name), theirs.get(name))
        for name in {**mine, **theirs}
        if mine.get(name) != theirs.get(name) and name != "plan_resolved"
    ]
    return RunComparison(names, tuple(tasks), tuple(differing))


def _judged(path: Path) -> RunFolder:
    run = read_run(path)
    if not run.complete:
        raise DataError(f"{path}: not judged yet; finish the run, then compare.")
    return run


def compared_markdown(comparison: RunComparison) -> str:
    first, second = map(md, comparison.names)
    lines = [f"# {second} against {first}", ""]
    lines += [md(f"- {name}: {b} against {a}") for name, a, b in comparison.settings]
    lines += ["", f"| {' | '.join(HEADS)} |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    lines += ["| " + " | ".join(map(md, row)) + " |" for row in _rows(comparison)]
    for task in comparison.tasks:
        for a, b in task.flipped:
            lines += ["", f"## {md(task.task)} {a['index']}: {a['score']:g} to {b['score']:g}"]
            for title, text in _texts(a, b):
                lines += [
                    "",
                    f"{title}:",
                    "",
                    *(f"    {line}" for line in text.splitlines() or ["(nothing)"]),
                ]
    return "\n".join(lines) + "\n"


def compared_html(comparison: RunComparison) -> str:
    """One file that needs nothing else."""
    first, second = comparison.names
    top = "".join(f"<th>{head}</th>" for head in HEADS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in _rows(comparison)
    )
    settings = "".join(f"<li>{escape(f'{name}: {b} against {a}')}</li>" for name, a, b in comparison.settings)
    items = []
    for task in comparison.tasks:
        for a, b in task.flipped:
            texts = "".join(
                f"<h4>{escape(title)}</h4><pre>{chr(10).join(map(escape, text.splitlines())) or '(nothing)'}</pre>"
                for title, text in _texts(a, b)
            )
            head = f"{task.task} {a['index']}: {a['score']:g} to {b['score']:g}"
            items.append(f"<details><summary>{escape(head)}</summary>{texts}</details>")
    body = (
        f"<ul>{settings}</ul><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>\n"
        f"<h2>Items that changed</h2>{''.join(items)}"
    )
    return html_page(f"{second} against {first}", body, "pre { white-space: pre-wrap; }")


def _rows(comparison: RunComparison) -> Iterator[tuple[str, ...]]:
    for task in comparison.tasks:
        (first, second), (mean, half) = task.scores, task.difference
        lost = sum(b["score"] < a["score"] for a, b in task.flipped)
        yield (
            task.task,
            str(len(task.pairs)),
            f"{first:.2f}",
            f"{second:.2f}",
            f"{mean:+.2f} ± {half:.2f}",
            str(lost),
            str(len(task.flipped) - lost),
        )


def _texts(first: Example, second: Example) -> list[tuple[str, str]]:
    """Titles and texts of one item; runs from before prompts were kept have neither prompt nor gold."""
    shared = [(name, str(first[name])) for name in ("prompt", "gold") if name in first]
    texts = [*shared, ("first", first["output"]), ("second", second["output"])]
    return [(title, "\n".join(map(printable, text.expandtabs().splitlines()))) for title, text in texts]
