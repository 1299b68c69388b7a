"""The third stage: the tasks grade the answers, programs in the sandbox."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from voidpad.errors import DataError
from voidpad.evaluate.folder import VERSION, AnswerRecord, AnswerRequest, Journal
from voidpad.evaluate.intervals import wilson
from voidpad.evaluate.prepare import naming_errors
from voidpad.evaluate.provenance import now

if TYPE_CHECKING:
    from voidpad.evaluate.tasks.task import Benchmark

# Fields of the journal that an example's line leaves out.
_JOURNAL_ONLY = ("name", "key", "ids", "tokens", "attempt", "elapsed")
MEANS = ("passes_decode", "passes_probe", "passes_shared", "canvas", "answer_tokens")


def score_run(
    head: Mapping[str, Any],
    tasks: Mapping[str, Benchmark],
    requests: Sequence[AnswerRequest],
    journal: Journal,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Grade all answers: the lines of examples.jsonl.gz, and results.json. `head` is config.json's content."""
    examples: list[dict[str, Any]] = []
    by_task = {}
    for name, task in tasks.items():
        mine = [request for request in requests if request.task == name]
        lines, extra = _grade_task(task, mine, journal.records)
        examples += lines
        metric, primary = task.primary
        by_task[name] = {
            "test_size": len(task.eval_docs),
            "metric": metric,
            "filter": primary,
            **summary(lines, head),
            "extra": extra,
        }
    return examples, {
        "version": VERSION,
        "tasks": by_task,
        "mean": {key: fmean([task[key] for task in by_task.values()]) for key in ("score", "passes_decode")},
        "wall_seconds": journal.wall_seconds,
        "provenance": head["provenance"],
        "finished": now(),
    }


def _grade_task(
    task: Benchmark, requests: Sequence[AnswerRequest], records: Mapping[str, AnswerRecord]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The lines of a task: prompt and gold, what was generated, and every grader's score of it.

    The second value holds the means of the primary grader's other metrics, such as math500's fallbacks.
    """
    metric, primary = task.primary
    docs = [task.eval_docs[request.index] for request in requests]
    graded = task.grade(docs, [records[request.name].output for request in requests])
    others: dict[str, list[float]] = {name: [] for name in task.metrics[1:]}
    lines = []
    for request, doc, by_grader in zip(requests, docs, graded, strict=True):
        with naming_errors(f"{request.name}: no score"):
            found = {grader: task.process_results(doc, [value]) for grader, value in by_grader.items()}
            scores = {grader: float(metrics[metric]) for grader, metrics in found.items()}
            for name, values in others.items():
                values.append(float(found[primary][name]))
        if not all(0 <= score <= 1 for score in scores.values()):
            raise DataError(
                f"{request.name}: {metric}={scores[primary]}, the first metric must be from 0 to 1"
            )
        record, detail = records[request.name], by_grader[primary]
        line = {
            "task": request.task,
            "index": request.index,
            "scores": scores,
            "score": scores[primary],
            "detail": detail if isinstance(detail, dict) else {"extracted": str(detail)},
            "prompt": request.prompt,
            "gold": request.gold,
            **{name: value for name, value in asdict(record).items() if name not in _JOURNAL_ONLY},
            "canvas": record.canvas,
        }
        lines.append(line)
    return lines, {f"{name}_share": fmean(values) for name, values in others.items()}


def summary(examples: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> dict[str, Any]:
    """One task's numbers from its examples; `head` is config.json's content."""
    graders = examples[0]["scores"]
    numbers: dict[str, Any] = {"n": len(examples), **_scored([one["score"] for one in examples])}
    numbers["scores"] = {name: _scored([one["scores"][name] for one in examples]) for name in graders}
    numbers |= {name: fmean([one[name] for one in examples]) for name in MEANS}
    numbers["passes_total"] = numbers["passes_decode"] + numbers["passes_probe"] - numbers["passes_shared"]
    numbers["share_at_cap"] = fmean([one["at_cap"] for one in examples])
    numbers["share_without_eos"] = fmean([not one["eos"] for one in examples])
    cached = head["config"]["cache"]  # its passes compute fewer slots than the canvas has
    numbers["slot_passes"] = None if cached else fmean([one["slot_passes"] for one in examples])
    numbers["seconds"] = math.fsum(one["seconds"] for one in examples)
    return numbers


def _scored(values: Sequence[float]) -> dict[str, Any]:
    """A score in percent with its interval."""
    correct = sum(values)
    low, high = wilson(correct, len(values))
    return {
        "correct": correct,
        "score": round(100 * correct / len(values), 2),
        "interval": [100 * low, 100 * high],
    }
