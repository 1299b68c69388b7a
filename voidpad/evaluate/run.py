"""A whole evaluation: prepare, answer and judge one after the other, and the union of shards."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, DataError
from voidpad.evaluate.answer import Progress, answer, opened_run
from voidpad.evaluate.folder import RunFolder, read_run
from voidpad.evaluate.judge import judge
from voidpad.evaluate.prepare import build_requests, load_tasks, prepare, refuse_code
from voidpad.evaluate.settings import Resources, Settings, first_difference
from voidpad.models import Model


def evaluate(
    settings: Settings,
    out: Path,
    *,
    model: Model | None = None,
    resources: Resources | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run what is missing in `out`, score all of it, write the files; returns results.json's content.

    Whatever can be refused is refused before anything is written.
    """
    resources = resources or Resources()
    refuse_code(settings, resources)
    tasks = load_tasks(settings, resources)
    with opened_run(settings, resources, model=model) as loaded:
        folder = RunFolder(out)
        with folder.writing():
            known = replace(settings, weights=loaded.settings["weights"])
            prepare(known, folder, resources=resources, tasks=tasks)
            answer(folder, loaded=loaded, progress=progress)
            return judge(folder, resources=resources, tasks=tasks)


def join(parts: Sequence[Path], out: Path, *, resources: Resources | None = None) -> dict[str, Any]:
    """One folder from the parts (shards) of a run, as if it had never been divided; needs no model.

    The parts have equal settings, the shard aside, no item in common, and together every item. Whatever of this fails
    is refused before anything is written.
    """
    resources = resources or Resources()
    runs = [read_run(part) for part in parts]
    if not runs:
        raise ConfigError("join: no parts; name the run folders to join")
    whole = {**runs[0].config["settings"], "shard": None}
    for run in runs:
        mine = {**run.config["settings"], "shard": None}
        if other := first_difference(mine, whole):
            raise ConfigError(
                f"{run.path}: {other}={mine.get(other)!r}, but {runs[0].path} has {whole.get(other)!r}; parts of one "
                "run differ in their shard alone"
            )
    owners: dict[str, Path] = {}
    for run in runs:
        if run.path.resolve() == Path(out).resolve():
            raise ConfigError(f"{out}: is one of the parts; use another --out")
        names, answered = [request.name for request in run.requests], run.journal.records
        for name in names:
            if name in owners:
                raise ConfigError(f"{run.path}: {name} is in {owners[name]} too; leave one of the two out")
            owners[name] = run.path
        missing = [name for name in names if name not in answered]
        if missing:
            raise DataError(
                f"{run.path}: {len(missing)} of {len(names)} items have no answer, the first is {missing[0]}; "
                f"run `voidpad eval --stage answer --out {run.path}` first"
            )
    settings = Settings.parse(whole)
    refuse_code(settings, resources)
    tasks = load_tasks(settings, resources)
    wanted = build_requests(tasks, settings)
    absent = [request.name for request in wanted if request.name not in owners]
    if absent:
        raise DataError(
            f"{len(absent)} items are in none of the parts, the first is {absent[0]}; name the missing part too"
        )
    folder = RunFolder(out)
    with folder.writing():
        prepare(settings, folder, resources=resources, tasks=tasks)
        folder.begin(whole, runs[0].config["provenance"])
        journal = folder.journal
        for run in runs:
            records = run.journal.records
            journal.append(record for name, record in records.items() if name not in journal.records)
        return judge(folder, resources=resources, tasks=tasks)
