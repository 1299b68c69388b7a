"""Judge decoded outputs and tabulate them: `python -m voidpad.builtin.score outputs.jsonl --out scores.json`."""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from voidpad.builtin.problems import Problem
from voidpad.builtin.tasks import TASKS, check, heldout, program
from voidpad.evaluate.scores import Z95, paired, wilson
from voidpad.files import store
from voidpad.sandbox import Sandbox

Record = dict[str, Any]
Judged = tuple[Record, bool]  # and whether its text is right

OFF: Record = {"cache": None, "accelerated": []}  # outputs from before these were recorded
NAMES = ("name", "model", "plan", "fields", "block", "first", "hide_eos", *OFF)


def judge(records: Sequence[Record], sandbox: Sandbox) -> list[bool]:
    """Whether each record's text is right. A program seen before is not run again."""
    sets = {task: heldout(task, 1 + max(r["index"] for r in records if r["task"] == task)) for task in TASKS
            if any(r["task"] == task for r in records)}  # fmt: skip
    found: list[bool | None] = []
    jobs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        problem = sets[record["task"]][record["index"]]
        job = job_of(problem, record)
        found.append(check(problem, record["text"], first=record["first"]) if job is None else None)
        if job is not None:
            jobs[job].append(place)
    for places, verdict in zip(jobs.values(), sandbox.map(jobs), strict=True):
        for place in places:
            found[place] = verdict.passed
    return [bool(one) for one in found]


def job_of(problem: Problem, record: Record) -> tuple[str, str] | None:
    """The program to run and its checks, or None when the text alone decides."""
    if not TASKS[problem.task].is_code:
        return None
    source = program(problem, record["text"], first=record["first"])
    return None if source is None else (source, problem.target)


def token_passes(record: Record) -> int | None:
    """Canvas slots computed over all passes; None where they change from pass to pass."""
    if record.get("cache") or "trim" in record.get("accelerated", ()):
        return None
    if record["plan"] == "void-expansion":
        step, decoded = record["block"], record["passes_decode"] - record["passes_shared"]
        probed = record["passes_probe"]
        return record["canvas"] * (decoded + probed) - step * (probed * (probed - 1) // 2)
    return record["canvas"] * record["passes_decode"] if record["plan"] in ("original", "void") else None


def summary(records: Sequence[Record], right: Sequence[bool]) -> Record:
    """One cell: accuracy by task with intervals, their mean, and what it cost."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for record, good in zip(records, right, strict=True):
        by_task[record["task"]].append(good)
    shares = {task: sum(values) / len(values) for task, values in by_task.items()}
    spread = math.sqrt(sum(p * (1 - p) / len(by_task[t]) for t, p in shares.items())) / len(shares)
    costs = [token_passes(record) for record in records]
    tokens, passes = (sum(r[name] for r in records) for name in ("answer_tokens", "passes_decode"))
    return {
        "tasks": {task: [p, *wilson(sum(by_task[task]), len(by_task[task]))] for task, p in shares.items()},
        "mean": sum(shares.values()) / len(shares),
        "half_width": Z95 * spread,
        "problems": len(records),
        "answer_tokens": tokens / len(records),
        "passes_decode": passes / len(records),
        "tokens_per_pass": tokens / passes,
        "passes_probe": average(r["passes_probe"] for r in records),
        "canvas": average(r["canvas"] for r in records),
        "token_passes": None if None in costs else average(cost for cost in costs if cost is not None),
    }


def average(values: Iterable[float]) -> float:
    kept = list(values)
    return math.fsum(kept) / len(kept)


def scores(records: Sequence[Record], sandbox: Sandbox) -> list[Record]:
    """A summary for every cell; for approximate ones also the difference to exact decoding."""
    cells: dict[str, list[Judged]] = defaultdict(list)
    for record, right in zip(records, judge(records, sandbox), strict=True):
        about = {**OFF, **record}
        cells[json.dumps({name: about[name] for name in NAMES}, sort_keys=True)].append((record, right))
    found = [(json.loads(cell), judged) for cell, judged in sorted(cells.items())]
    exact = {baseline(cell): judged for cell, judged in found if not cell["accelerated"]}
    return [
        {
            **cell,
            **summary([record for record, _ in judged], [right for _, right in judged]),
            "difference": difference(judged, exact.get(baseline(cell), [])) if cell["accelerated"] else None,
        }
        for cell, judged in found
    ]


def baseline(cell: Record) -> str:
    """What a cell is but for its name and its approximations; these are named as the fields that set them."""
    fields = {name: value for name, value in cell["fields"].items() if name not in cell["accelerated"]}
    return json.dumps({**cell, "name": "", "fields": fields, **OFF}, sort_keys=True)


def difference(judged: Sequence[Judged], exact: Sequence[Judged]) -> tuple[float, float] | None:
    """The mean over the problems that both have, and half its interval."""
    mine, theirs = ({(r["task"], r["index"]): right for r, right in one} for one in (judged, exact))
    both = mine.keys() & theirs.keys()
    return paired([mine[problem] - theirs[problem] for problem in both]) if both else None


def table(found: Sequence[Record]) -> str:
    """Markdown, one line per cell."""
    heads = ("method", "block", "mean", "against exact", *(task.removeprefix("tiny_") for task in TASKS),
             "answer", "passes", "tokens a pass", "probes", "canvas", "slot passes")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for cell in sorted(found, key=lambda c: (c["name"], c["block"])):
        apart, cost = cell["difference"], cell["token_passes"]
        words = [
            cell["name"],
            str(cell["block"]),
            f"{100 * cell['mean']:.1f} ± {100 * cell['half_width']:.1f}",
            f"{100 * apart[0]:+.1f} ± {100 * apart[1]:.1f}" if apart else "",
            *(share(*cell["tasks"][task]) if task in cell["tasks"] else "" for task in TASKS),
            *(f"{cell[name]:.1f}" for name in ("answer_tokens", "passes_decode")),
            f"{cell['tokens_per_pass']:.2f}",
            *(f"{cell[name]:.1f}" for name in ("passes_probe", "canvas")),
            "" if cost is None else f"{cost:.0f}",
        ]
        lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines)


def share(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m voidpad.builtin.score", description=__doc__)
    parser.add_argument("outputs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, help="the summaries as JSON")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--weak-sandbox", action="store_true")
    given = parser.parse_args(arguments)
    records = [
        json.loads(line) for path in given.outputs for line in path.read_text(encoding="utf-8").splitlines()
    ]
    with Sandbox(workers=given.workers, weak=given.weak_sandbox) as sandbox:
        found = scores(records, sandbox)
    if given.out:
        store(given.out, [json.dumps(found, indent=1) + "\n"])
    print(table(found))


if __name__ == "__main__":
    from voidpad.commands.cli import guarded

    guarded(main)
