"""Whole evaluations, single stages, and the union of shards.

The stages hand each other objects; the folder is written on the way, so that a killed run goes on and others can read
it. `prepare`, `answer` and `judge` go from folder to folder, for work that is divided between machines; only the second
loads a model, and only the others need lm-eval, which is imported when the first task is looked for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voidpad.evaluate.answer import Answerer, Progress, answer_requests
from voidpad.evaluate.config import DEFAULT_RESOURCES, EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRecord, AnswerRequest, RunFolder, check_answers, read_run
from voidpad.evaluate.judge import score_run
from voidpad.evaluate.prepare import build_requests, load_tasks
from voidpad.evaluate.provenance import judge_provenance
from voidpad.models import Model


def evaluate(
    config: EvalConfig,
    out: Path,
    *,
    model: Model | None = None,
    resources: Resources = DEFAULT_RESOURCES,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Answer what is missing in `out`, score all of it, write the files; returns results.json's content.

    Whatever can be refused is refused before anything is written.
    """
    tasks = load_tasks(config, resources)
    requests = build_requests(tasks, config)
    folder = RunFolder(out)
    answerer = Answerer.load(config, resources, model=model)
    with folder.writing():
        provenance = answerer.provenance | judge_provenance(config.tasks, resources)
        head = folder.begin(answerer.config, provenance, answerer.plan_fields, requests)
        journal = folder.journal
        answer_requests(answerer, requests, journal, progress)
        return folder.write_results(*score_run(head, tasks, requests, journal))


def prepare(
    config: EvalConfig, folder: RunFolder, *, resources: Resources = DEFAULT_RESOURCES
) -> list[AnswerRequest]:
    """The first stage: write config.json and requests.jsonl; returns the requests.

    The model need not be on this machine, and no program will run here.
    """
    requests = build_requests(load_tasks(config, resources, judging=False), config)
    with folder.writing():
        known = config if config.weights else config.with_weights()
        folder.begin(known, judge_provenance(config.tasks, resources), requests=requests)
    return requests


def answer(
    folder: RunFolder,
    *,
    model: Model | None = None,
    resources: Resources = DEFAULT_RESOURCES,
    progress: Progress | None = None,
) -> None:
    """The second stage: answer the requests of a folder that have no answer yet. It needs no lm-eval."""
    answerer = Answerer.load(folder.config, resources, model=model)
    with folder.writing():
        provenance = folder.head["provenance"] | answerer.provenance
        folder.begin(answerer.config, provenance, answerer.plan_fields)
        answer_requests(answerer, folder.requests, folder.journal, progress)


def judge(folder: RunFolder, *, resources: Resources = DEFAULT_RESOURCES) -> dict[str, Any]:
    """The third stage: grade the answers of a folder, write examples and results; returns the latter."""
    tasks = load_tasks(folder.config, resources)
    with folder.writing():
        requests, journal, head = folder.requests, folder.journal, folder.head
        check_answers(requests, journal.records, folder.path)
        head["provenance"] |= judge_provenance(tuple(tasks), resources)
        folder.write_head(head)
        return folder.write_results(*score_run(head, tasks, requests, journal))


def join(parts: Sequence[Path], out: Path, *, resources: Resources = DEFAULT_RESOURCES) -> dict[str, Any]:
    """One folder from the parts (shards) of a run, as if it had never been divided; needs no model.

    The parts have equal configs, the shard aside, and together every item; else nothing is written.
    """
    runs = [read_run(part) for part in parts]
    config = runs[0].config.updated(shard=None)
    records: dict[str, AnswerRecord] = {}
    for run in runs:
        same = run.config.updated(shard=None)
        same.require_equal(config, run.path, "parts of one run differ in their shard alone")
        records |= run.journal.records
    tasks = load_tasks(config, resources)
    requests = build_requests(tasks, config)
    check_answers(requests, records, runs[0].path)
    folder = RunFolder(out)
    with folder.writing():
        provenance = runs[0].head["provenance"] | judge_provenance(config.tasks, resources)
        head = folder.begin(config, provenance, runs[0].head["plan"], requests)
        journal = folder.journal
        journal.append(record for name, record in records.items() if name not in journal.records)
        return folder.write_results(*score_run(head, tasks, requests, journal))
