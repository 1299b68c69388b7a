"""A whole evaluation, and the union of shards.

The stages hand each other objects; the folder is written on the way, so that a killed run goes on and others can read
it. `prepare.prepare`, `answer.answer` and `judge.judge` are the stages alone, from folder to folder, for work that is
divided between machines.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError
from voidpad.evaluate.answer import Progress, answer_requests, check_prompts, opened_run
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRecord, RunFolder, first_difference, read_run
from voidpad.evaluate.judge import score_run
from voidpad.evaluate.prepare import build_requests, load_tasks
from voidpad.evaluate.provenance import judge_provenance
from voidpad.models import Model


def evaluate(
    config: EvalConfig,
    out: Path,
    *,
    model: Model | None = None,
    resources: Resources | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Answer what is missing in `out`, score all of it, write the files; returns results.json's content.

    Whatever can be refused is refused before anything is written.
    """
    resources = resources or Resources()
    tasks = load_tasks(config, resources)
    requests = build_requests(tasks, config)
    folder = RunFolder(out)
    with opened_run(config, resources, model=model) as run, folder.writing():
        facts = run.provenance | judge_provenance(config.tasks, resources)
        head = folder.begin(run.config, facts, run.plan)
        folder.write_requests(requests)
        journal = folder.journal
        answer_requests(run, requests, journal, progress)
        return score_run(folder, head, tasks, requests, journal)


def join(parts: Sequence[Path], out: Path, *, resources: Resources | None = None) -> dict[str, Any]:
    """One folder from the parts (shards) of a run, as if it had never been divided; needs no model.

    The parts have equal configs, the shard aside, no item in common, and together every item. Whatever of this fails
    is refused before anything is written.
    """
    resources = resources or Resources()
    runs = [read_run(part) for part in parts]
    if not runs:
        raise ConfigError("join: no parts; name the run folders to join")
    config = runs[0].config.updated(shard=None)
    records: dict[str, AnswerRecord] = {}
    for run in runs:
        mine = run.config.updated(shard=None)
        if name := first_difference(mine, config):
            raise ConfigError(
                f"{run.path}: {name}={getattr(mine, name)!r}, but {runs[0].path} has {getattr(config, name)!r}; "
                "parts of one run differ in their shard alone"
            )
        if run.path.resolve() == Path(out).resolve():
            raise ConfigError(f"{out}: is one of the parts; use another --out")
        answered = run.journal.records
        if double := records.keys() & answered.keys():
            raise ConfigError(f"{run.path}: {min(double)} is in another part too; leave one of the two out")
        records |= answered
    tasks = load_tasks(config, resources)
    requests = build_requests(tasks, config)
    if absent := [request.name for request in requests if request.name not in records]:
        raise DataError(
            f"{len(absent)} items have no answer in these parts, the first is {absent[0]}; name the missing part, "
            "or run `voidpad eval --stage answer` on an unfinished one"
        )
    check_prompts(requests, records, runs[0].path)
    folder = RunFolder(out)
    with folder.writing():
        facts = runs[0].head["provenance"] | judge_provenance(config.tasks, resources)
        head = folder.begin(config, facts, runs[0].head["plan"])
        folder.write_requests(requests)
        journal = folder.journal
        journal.append(record for name, record in records.items() if name not in journal.records)
        return score_run(folder, head, tasks, requests, journal)
