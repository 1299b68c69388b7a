"""A sweep folder: which cells a recipe has, which are done, and the run of the missing ones in this process.

The folder is a pool: cells are named by their settings, so recipes may share it and each cell runs once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voidpad.decode.plan import describe
from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.folder import write
from voidpad.evaluate.run import evaluate
from voidpad.evaluate.settings import Resources, Settings
from voidpad.experiments.report.records import SUFFIX, VERSION
from voidpad.experiments.sweep_recipe import Cell, Recipe, cells, family
from voidpad.models import Model, load
from voidpad.models.families_decoding import DECODING

Progress = Callable[[Cell, int, int], None]  # (cell, examples done, examples in all)


@dataclass(frozen=True)
class Ended:
    """A cell that was run: its results, or why there are none."""

    cell: Cell
    results: dict[str, Any] | None = None
    error: VoidpadError | None = None
    worker: str = ""  # the process that finished it, on a cluster
    loads: int = 0  # models that process has loaded so far


def begin(recipe: Recipe, name: str, out: Path) -> list[Cell]:
    """Write NAME.sweep.json, which tells the report what the cells are; return the cells."""
    found = cells(recipe)
    rows = [{"folder": cell.folder, **coordinates(cell)} for cell in found]
    content = {
        "version": VERSION,
        "title": recipe.title,
        "reference": recipe.reference,
        "cells": rows,
        "tables": [table.model_dump(mode="json") for table in recipe.tables],
        "figures": [figure.model_dump(mode="json") for figure in recipe.figures],
    }
    out.mkdir(parents=True, exist_ok=True)
    write(out / f"{name}{SUFFIX}", [json.dumps(content, indent=1)])
    return found


def coordinates(cell: Cell) -> dict[str, Any]:
    """Where a cell stands in the report, before it has run."""
    settings = cell.settings
    at = describe(settings.plan, defaults=DECODING[family(settings.model)], **settings.fields)[1]
    labels = {"model": cell.model, "method": cell.method, "task": cell.task}
    return {**labels, "at": json.loads(json.dumps(at)), "settings": settings.plain()}


def missing(found: Iterable[Cell], out: Path) -> list[Cell]:
    """Cells without results, those of one model next to each other."""
    left = [cell for cell in found if not (out / cell.folder / "results.json").is_file()]
    first: dict[tuple[Any, ...], int] = {}
    for at, cell in enumerate(left):
        first.setdefault(weights(cell.settings), at)
    return sorted(left, key=lambda cell: first[weights(cell.settings)])


def only(found: Sequence[Cell], wanted: Sequence[str]) -> list[Cell]:
    """The cells whose ids start with one of the given texts."""
    unknown = [text for text in wanted if not any(cell.id.startswith(text) for cell in found)]
    if unknown:
        raise ConfigError(f"only={', '.join(unknown)}: no such cell; --dry-run lists the ids.")
    return [cell for cell in found if not wanted or cell.id.startswith(tuple(wanted))]


def weights(settings: Settings) -> tuple[Any, ...]:
    """What must be loaded; cells with equal weights share a model."""
    return settings.model, settings.adapter or "", settings.dtype, settings.quantize or ""


@dataclass
class Loader:
    """The model asked for last. Cells come model by model, so one is loaded once and one is in memory."""

    held: tuple[Any, ...] = ()
    model: Model | None = field(default=None)
    loads: int = 0

    def __call__(self, settings: Settings, device: str) -> Model:
        wanted = (*weights(settings), device)
        if self.model is None or self.held != wanted:
            self.model = None  # before the next one takes its memory
            self.model = load(
                settings.model,
                settings.adapter,
                device=device,
                dtype=settings.dtype,
                quantize=settings.quantize,
            )
            self.held, self.loads = wanted, self.loads + 1
        return self.model


def run_local(
    left: Sequence[Cell], out: Path, *, resources: Resources, progress: Progress | None = None
) -> Iterator[Ended]:
    """Run the cells one after the other. A cell that voidpad refuses is reported and the rest goes on."""
    loader = Loader()
    for cell in left:
        tell = None if progress is None else lambda done, total, cell=cell: progress(cell, done, total)
        try:
            model = loader(cell.settings, resources.device)
            found = evaluate(
                cell.settings, out / cell.folder, model=model, resources=resources, progress=tell
            )
        except VoidpadError as error:
            yield Ended(cell, error=error)
        else:
            yield Ended(cell, found)
