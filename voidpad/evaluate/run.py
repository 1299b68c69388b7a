"""A whole evaluation: prepare, answer and judge one after the other, and the union of shards."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voidpad.evaluate.answer import Progress, answer, load_run
from voidpad.evaluate.folder import RunFolder, read_run, refuse_others
from voidpad.evaluate.judge import judge
from voidpad.evaluate.prepare import load_tasks, prepare, refuse_code
from voidpad.evaluate.settings import Resources, Settings
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
    loaded = load_run(settings, resources, model=model)
    folder = RunFolder(out)
    with folder.writing():
        known = replace(settings, weights=loaded.settings["weights"])
        prepare(known, folder, resources=resources, tasks=tasks)
        answer(folder, loaded=loaded, progress=progress)
        return judge(folder, resources=resources, tasks=tasks)


def join(shards: Sequence[Path], out: Path, *, resources: Resources | None = None) -> dict[str, Any]:
    """One folder from the shards of a run, as if it had never been split; needs no model."""
    runs = [read_run(shard) for shard in shards]
    whole = {**runs[0].config["settings"], "shard": None}
    for run in runs:
        refuse_others(run.path / "config.json", {**run.config["settings"], "shard": None}, whole)
    folder = RunFolder(out)
    with folder.writing():
        prepare(Settings.parse(whole), folder, resources=resources)
        folder.begin(whole, runs[0].config["provenance"])
        journal = folder.journal
        for run in runs:
            records = run.journal.records
            journal.append(record for name, record in records.items() if name not in journal.records)
        return judge(folder, resources=resources)
