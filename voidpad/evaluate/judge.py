"""The third stage: lm-evaluation-harness grades the answers of a run folder, programs in the sandbox."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_evaluate

from voidpad.errors import ConfigError, DataError
from voidpad.evaluate.answer import check_prompts
from voidpad.evaluate.folder import VERSION, AnswerRequest, RunFolder, write_lines
from voidpad.evaluate.journal import Journal
from voidpad.evaluate.prepare import chosen_items, load_tasks, refuse_code, requests_of, without_bars
from voidpad.evaluate.provenance import judge_provenance, now
from voidpad.evaluate.scores import mean, summary
from voidpad.evaluate.settings import Resources
from voidpad.evaluate.tasks.benchmark_files import ITEM
from voidpad.evaluate.tasks.task import Benchmark

# Fields of a journal record that an example's line leaves out.
_UNSCORED = ("name", "key", "ids", "tokens", "attempt", "elapsed")


class _RecordedAnswers(LM):  # type: ignore[misc]  # lm-eval has no types
    """An lm-eval model that gives the answers of a journal and computes nothing."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        wanted = requests_of(requests)
        missing = [request.name for request in wanted if request.name not in self.journal.records]
        if missing:
            raise DataError(
                f"{len(missing)} examples have no answer, the first is {missing[0]}; run --stage answer first."
            )
        check_prompts(wanted, self.journal)
        return [self.journal.records[request.name].output for request in wanted]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> Any:
        raise ConfigError(
            "this run generates only; loglikelihood tasks go through python -m voidpad.evaluate.lm_eval"
        )

    loglikelihood_rolling = loglikelihood


def judge(
    folder: RunFolder,
    *,
    resources: Resources | None = None,
    tasks: dict[str, Benchmark] | None = None,
) -> dict[str, Any]:
    """Grade all answers, write examples.jsonl and then results.json; returns the latter's content."""
    resources = resources or Resources()
    settings = folder.settings
    refuse_code(settings, resources)
    tasks = tasks or load_tasks(settings, resources)
    with folder.writing():
        journal, requests = folder.journal, {request.name: request for request in folder.requests}
        for task in tasks.values():
            task.set_fewshot_seed(settings.fewshot_seed)
        with without_bars():
            graded = lm_evaluate(
                _RecordedAnswers(journal),
                {"tasks": tasks},
                samples={name: chosen_items(task, settings) for name, task in tasks.items()},
                bootstrap_iters=0,
                confirm_run_unsafe_code=True,
            )
        assert graded is not None
        samples = graded["samples"]
        examples = {name: _examples(task, samples[name], journal, requests) for name, task in tasks.items()}
        folder.note(judge_provenance(settings.tasks, resources))
        write_lines(
            folder.path / "examples.jsonl", (json.dumps(one) for lines in examples.values() for one in lines)
        )
        results: dict[str, Any] = {
            "version": VERSION,
            "tasks": {
                name: _task_results(tasks[name], lines, samples[name]) for name, lines in examples.items()
            },
            "wall_seconds": journal.wall_seconds,
            "provenance": folder.config["provenance"],
            "finished": now(),
        }
        results["mean"] = {
            name: mean([task[name] for task in results["tasks"].values()])
            for name in ("score", "passes_decode")
        }
        write_lines(folder.path / "results.json", [json.dumps(results, indent=1)])
    return results


def _examples(
    task: Benchmark,
    samples: Sequence[dict[str, Any]],
    journal: Journal,
    requests: dict[str, AnswerRequest],
) -> list[dict[str, Any]]:
    """A line per item: prompt and gold, what was generated, and every grader's score of it."""
    metric, primary = task.primary
    lines: dict[int, dict[str, Any]] = {}
    for sample in samples:
        index = sample["doc"][ITEM]
        line = lines.setdefault(index, {"task": task.task_name, "index": index, "scores": {}})
        line["scores"][sample["filter"]] = sample[metric]
        if sample["filter"] == primary:
            line["score"] = sample[metric]
            line["detail"] = task.detail(sample["doc"], sample["filtered_resps"][0])
    for index, line in lines.items():
        name = f"{task.task_name}:{index}"
        record, request = journal.records[name], requests[name]
        kept = {field: value for field, value in asdict(record).items() if field not in _UNSCORED}
        lines[index] = {
            **line,
            "prompt": request.prompt,
            "gold": request.gold,
            **kept,
            "canvas": record.canvas,
        }
    return [lines[index] for index in sorted(lines)]


def _task_results(
    task: Benchmark, lines: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A task's entry in results.json; shares that only its primary grader knows come as `extra`."""
    metric, primary = task.primary
    mine = [sample for sample in samples if sample["filter"] == primary]
    return {
        "test_size": len(task.eval_docs),
        "metric": metric,
        "filter": primary,
        **summary(lines),
        "extra": {f"{name}_share": mean([sample[name] for sample in mine]) for name in task.metrics[1:]},
    }
