"""Whole evaluations, single stages, and the union of shards.

The stages hand each other objects; the folder is written on the way, so that a killed run goes on and others can read
it. `prepare`, `answer` and `judge` go from folder to folder, for work that is divided between machines; only the second
loads a model, and only the others need lm-eval, which is imported when the first task is looked for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError
from voidpad.evaluate.answer import Progress, answer_requests, opened
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
    with opened(config, resources, model) as answering, folder.writing():
        provenance = answering.provenance | judge_provenance(config.tasks, resources)
        head = folder.begin(answering.config, provenance, answering.plan_fields, requests)
        journal = folder.journal
        answer_requests(answering, requests, journal, progress)
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
    with opened(folder.config, resources, model) as answering, folder.writing():
        provenance = folder.head["provenance"] | answering.provenance
        folder.begin(answering.config, provenance, answering.plan_fields)
        answer_requests(answering, folder.requests, folder.journal, progress)


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

    The parts have equal configs, the shard aside, no item in common, and together every item. Whatever of this fails
    is refused before anything is written.
    """
    runs = [read_run(part) for part in parts]
    if not runs:
        raise ConfigError("join: no parts; name the run folders to join")
    config = runs[0].config.updated(shard=None)
    records: dict[str, AnswerRecord] = {}
    for run in runs:
        fix = "parts of one run differ in their shard alone"
        run.config.updated(shard=None).require_equal(config, run.path, fix)
        if run.path.resolve() == Path(out).resolve():
            raise ConfigError(f"{out}: is one of the parts; use another --out")
        answered = run.journal.records
        if double := records.keys() & answered.keys():
            raise ConfigError(f"{run.path}: {min(double)} is in another part too; leave one of the two out")
        records |= answered
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
