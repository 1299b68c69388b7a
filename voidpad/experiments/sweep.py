"""A sweep folder: which cells a recipe has, which are done, and the run of the missing ones in this process.

The folder is a pool: cells are named by their configs, so recipes may share it and each cell runs once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.answer import answer, load_model, load_run
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import VERSION, RunFolder, damaged, read_versioned
from voidpad.experiments.report.layout import SUFFIX
from voidpad.experiments.sweep_recipe import SweepCell, SweepRecipe, cells
from voidpad.files import store
from voidpad.models import Model

Progress = Callable[[SweepCell, int, int], None]  # (cell, examples done, examples in all)


@dataclass(frozen=True)
class CellOutcome:
    """A cell that was run: its results, or why there are none."""

    cell: SweepCell
    results: dict[str, Any] | None = None  # none either where only one stage ran
    error: VoidpadError | None = None
    worker: str = ""  # the process that finished it, on a cluster
    loads: int = 0  # models that process has loaded so far


def begin(recipe: SweepRecipe, name: str, out: Path, *, download: bool = False) -> list[SweepCell]:
    """Write NAME.sweep.json, which tells the report what the cells are; return the cells."""
    every = cells(recipe, download=download)
    names = ("folder", "model", "method", "grader", "labels", "plan")
    rows = [
        {**{name: getattr(cell, name) for name in names}, "config": cell.config.plain()} for cell in every
    ]
    content = {
        "version": VERSION,
        "title": recipe.title,
        "reference": recipe.reference,
        "cells": rows,
        "tables": [table.model_dump(mode="json") for table in recipe.tables],
        "figures": [figure.model_dump(mode="json") for figure in recipe.figures],
    }
    out.mkdir(parents=True, exist_ok=True)
    store(out / f"{name}{SUFFIX}", [json.dumps(content, indent=1), "\n"])
    return every


def stored_cells(name: str, out: Path) -> list[SweepCell]:
    """The cells of a sweep that was begun here or on another machine, as its NAME.sweep.json lists them."""
    path = out / f"{name}{SUFFIX}"
    rows = read_versioned(path)["cells"]
    with damaged(path, "run the sweep again"):
        for row in rows:
            del row["folder"]  # follows from the config
            row["config"] = EvalConfig(**row["config"])
        return [SweepCell(**row) for row in rows]


def missing(every: Iterable[SweepCell], out: Path) -> list[SweepCell]:
    """Cells without results, each evaluation once, those of one model next to each other."""
    distinct = {cell.id: cell for cell in reversed(list(every))}
    left = [cell for cell in reversed(distinct.values()) if not RunFolder(out / cell.folder).complete]
    order = list(dict.fromkeys(_weights_of(cell.config) for cell in left))
    return sorted(left, key=lambda cell: order.index(_weights_of(cell.config)))


def full_seconds(every: Iterable[SweepCell], out: Path) -> float:
    """Seconds that decoding all items of these finished cells would take, judged by the items that were decoded."""
    total = 0.0
    for folder in {cell.folder for cell in every}:
        results = RunFolder(out / folder).results
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


def _weights_of(config: EvalConfig) -> tuple[Any, ...]:
    """What must be loaded; cells with equal weights share a model."""
    return config.model, config.adapter, config.weights, config.dtype, config.quantize, config.merge


class Loader:
    """Keeps the model that was loaded last. Cells come model by model, so each is loaded once."""

    def __init__(self) -> None:
        self.key: tuple[Any, ...] = ()
        self.model: Model | None = None
        self.loads = 0

    def __call__(self, config: EvalConfig, resources: Resources) -> Model:
        wanted = (*_weights_of(config), resources.device)
        if self.model is None or self.key != wanted:
            self.model = None  # before the next one takes its memory
            self.model = load_model(config, resources)
            self.key, self.loads = wanted, self.loads + 1
        return self.model


def run_local(
    left: Sequence[SweepCell],
    out: Path,
    *,
    resources: Resources,
    progress: Progress | None = None,
    stage: str | None = None,
) -> Iterator[CellOutcome]:
    """Run the cells one after the other, or one stage of them. A cell that voidpad refuses does not stop the rest."""
    loader = Loader()
    for cell in left:
        show = None if progress is None else lambda done, total, cell=cell: progress(cell, done, total)
        folder, config = RunFolder(out / cell.folder), cell.config
        results = None
        try:
            # What needs lm-eval is imported where it is used: a machine that only answers need not have it.
            if stage == "prepare":
                from voidpad.evaluate.prepare import prepare

                prepare(config, folder, resources=resources)
            elif stage == "answer":
                run = load_run(config, resources, model=loader(config, resources))
                answer(folder, run=run, progress=show)
            elif stage == "judge":
                from voidpad.evaluate.judge import judge

                results = judge(folder, resources=resources)
            else:
                from voidpad.evaluate.run import evaluate

                model = loader(config, resources)
                results = evaluate(config, folder.path, model=model, resources=resources, progress=show)
            yield CellOutcome(cell, results)
        except VoidpadError as error:
            yield CellOutcome(cell, error=error)
