"""A sweep folder: which cells a recipe has, which are done, and the run of the missing ones in this process.

The folder is a pool: cells are named by their settings, so recipes may share it and each cell runs once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.answer import answer, load_model, load_run
from voidpad.evaluate.file_shapes import SweepFile
from voidpad.evaluate.folder import VERSION, RunFolder, read_versioned, write_lines
from voidpad.evaluate.settings import Resources, Settings
from voidpad.experiments.report.records import SUFFIX
from voidpad.experiments.sweep_recipe import SweepCell, SweepRecipe, cells, families, resolved_fields
from voidpad.models import Model

Progress = Callable[[SweepCell, int, int], None]  # (cell, examples done, examples in all)


@dataclass(frozen=True)
class Ended:
    """A cell that was run: its results, or why there are none."""

    cell: SweepCell
    results: dict[str, Any] | None = None  # none either where only one stage ran
    error: VoidpadError | None = None
    worker: str = ""  # the process that finished it, on a cluster
    loads: int = 0  # models that process has loaded so far


def begin(recipe: SweepRecipe, name: str, out: Path, *, download: bool = False) -> list[SweepCell]:
    """Write NAME.sweep.json, which tells the report what the cells are; return the cells."""
    every = cells(recipe, download=download)
    known = {model: families(model) for model in dict.fromkeys(cell.settings.model for cell in every)}
    content = {
        "version": VERSION,
        "title": recipe.title,
        "reference": recipe.reference,
        "cells": [_row(cell, known[cell.settings.model]) for cell in every],
        "tables": [table.model_dump(mode="json") for table in recipe.tables],
        "figures": [figure.model_dump(mode="json") for figure in recipe.figures],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / f"{name}{SUFFIX}", [json.dumps(content, indent=1)])
    return every


def _row(cell: SweepCell, families: Sequence[str]) -> dict[str, Any]:
    """Where a cell's folder is, and where the cell stands in the report before it has run."""
    settings = cell.settings
    at = resolved_fields(settings.plan, dict(settings.fields), families)
    labels = {"model": cell.model, "method": cell.method, "task": cell.task, "grader": cell.grader}
    return {
        "folder": cell.folder,
        **labels,
        "at": json.loads(json.dumps(at)),
        "settings": settings.plain(),
    }


def begun(name: str, out: Path) -> list[SweepCell]:
    """The cells of a sweep that was begun here or on another machine, as its NAME.sweep.json lists them."""
    rows = read_versioned(out / f"{name}{SUFFIX}", SweepFile)["cells"]
    return [
        SweepCell(row["model"], row["method"], Settings.parse(row["settings"]), row.get("grader", ""))
        for row in rows
    ]


def missing(every: Iterable[SweepCell], out: Path) -> list[SweepCell]:
    """Cells without results, those of one model next to each other."""
    left = [cell for cell in every if not RunFolder(out / cell.folder).complete]
    first: dict[tuple[Any, ...], int] = {}
    for at, cell in enumerate(left):
        first.setdefault(_weights_of(cell.settings), at)
    return sorted(left, key=lambda cell: first[_weights_of(cell.settings)])


def full_seconds(every: Iterable[SweepCell], out: Path) -> float:
    """Seconds that decoding all items of these finished cells would take, judged by the items that were decoded."""
    total = 0.0
    for cell in every:
        results = RunFolder(out / cell.folder).results
        assert results is not None
        [task] = results["tasks"].values()
        total += results["wall_seconds"] * task["test_size"] / task["n"]
    return total


def only(every: Sequence[SweepCell], wanted: Sequence[str]) -> list[SweepCell]:
    """The cells whose ids start with one of the given texts."""
    unknown = [text for text in wanted if not any(cell.id.startswith(text) for cell in every)]
    if unknown:
        raise ConfigError(
            f"only={', '.join(unknown)}: no such cell; ids belong to one --limit, and --dry-run with the same --limit "
            "lists them."
        )
    return [cell for cell in every if not wanted or cell.id.startswith(tuple(wanted))]


def _weights_of(settings: Settings) -> tuple[Any, ...]:
    """What must be loaded; cells with equal weights share a model."""
    named = (settings.model, settings.adapter or "", settings.weights or "")
    return (*named, settings.dtype, settings.quantize or "", settings.merge)


@dataclass
class Loader:
    """Keeps the model that was loaded last. Cells come model by model, so each is loaded once."""

    key: tuple[Any, ...] = ()
    model: Model | None = field(default=None)
    loads: int = 0

    def __call__(self, settings: Settings, resources: Resources) -> Model:
        wanted = (*_weights_of(settings), resources.device)
        if self.model is None or self.key != wanted:
            self.model = None  # before the next one takes its memory
            self.model = load_model(settings, resources)
            self.key, self.loads = wanted, self.loads + 1
        return self.model


def run_local(
    left: Sequence[SweepCell],
    out: Path,
    *,
    resources: Resources,
    progress: Progress | None = None,
    stage: str | None = None,
) -> Iterator[Ended]:
    """Run the cells one after the other, or one stage of them. A cell that voidpad refuses does not stop the rest."""
    loader = Loader()
    for cell in left:
        tell = None if progress is None else lambda done, total, cell=cell: progress(cell, done, total)
        try:
            yield Ended(cell, _run(cell, out / cell.folder, loader, resources, tell, stage))
        except VoidpadError as error:
            yield Ended(cell, error=error)


def _run(
    cell: SweepCell,
    path: Path,
    loader: Loader,
    resources: Resources,
    progress: Callable[[int, int], None] | None,
    stage: str | None,
) -> dict[str, Any] | None:
    """The results of a cell, where the stage makes any. The answer stage imports no harness."""
    folder = RunFolder(path)
    if stage == "answer":
        loaded = load_run(cell.settings, resources, model=loader(cell.settings, resources))
        answer(folder, loaded=loaded, progress=progress)
        return None
    if stage == "prepare":
        from voidpad.evaluate.prepare import prepare

        prepare(cell.settings, folder, resources=resources)
        return None
    if stage == "judge":
        from voidpad.evaluate.judge import judge

        return judge(folder, resources=resources)
    from voidpad.evaluate.run import evaluate

    model = loader(cell.settings, resources)
    return evaluate(cell.settings, path, model=model, resources=resources, progress=progress)
