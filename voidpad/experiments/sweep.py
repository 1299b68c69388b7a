"""A sweep folder: which cells a recipe has, which are done, and the run of the missing ones, here or on a Ray cluster.

The folder is a pool: cells are named by their configs, so recipes may share it and each cell runs once.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, VoidpadError, first_line, install_command
from voidpad.evaluate.answer import load_model
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import VERSION, RunFolder, read_versioned
from voidpad.evaluate.run import evaluate
from voidpad.experiments.report.layout import SUFFIX
from voidpad.experiments.sweep_recipe import SweepCell, SweepRecipe, cells
from voidpad.files import fresh_folder, store
from voidpad.models import Model
from voidpad.models.device import gpus_per_task

Progress = Callable[[SweepCell, int, int], None]  # (cell, examples done, examples in all)


@dataclass(frozen=True)
class CellOutcome:
    """A cell that was run: its results, or why there are none."""

    cell: SweepCell
    results: dict[str, Any] | None = None
    error: VoidpadError | None = None


def begin(recipe: SweepRecipe, name: str, out: Path, *, download: bool = False) -> list[SweepCell]:
    """Write NAME.sweep.json, which tells the report what the cells are; return the cells."""
    every = cells(recipe, download=download)
    content = {
        "version": VERSION,
        "title": recipe.title,
        "reference": recipe.reference,
        "cells": [{**vars(cell), "folder": cell.folder, "config": cell.config.plain()} for cell in every],
        "tables": [table.model_dump(mode="json") for table in recipe.tables],
        "figures": [figure.model_dump(mode="json") for figure in recipe.figures],
    }
    out.mkdir(parents=True, exist_ok=True)
    store(out / f"{name}{SUFFIX}", [json.dumps(content, indent=1), "\n"])
    return every


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
        results = read_versioned(out / folder / "results.json")
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

    def __call__(self, config: EvalConfig, resources: Resources) -> Model:
        wanted = (*_weights_of(config), resources.device)
        if self.model is None or self.key != wanted:
            self.model = None  # before the next one takes its memory
            self.model = load_model(config, resources)
            self.key = wanted
        return self.model


def run_local(
    left: Sequence[SweepCell],
    out: Path,
    *,
    resources: Resources,
    progress: Progress | None = None,
) -> Iterator[CellOutcome]:
    """Run the cells one after the other. A cell that voidpad refuses does not stop the rest."""
    loader = Loader()
    for cell in left:
        show = None if progress is None else partial(progress, cell)
        try:
            model = loader(cell.config, resources)
            folder = out / cell.folder
            results = evaluate(cell.config, folder, model=model, resources=resources, progress=show)
            yield CellOutcome(cell, results)
        except VoidpadError as error:
            yield CellOutcome(cell, error=error)


# ------------------------------------------------------------------------------------------------------------- Ray
# A cell is one Ray task. Tasks, not actors: Ray moves a lost task to any worker that is free, while the tasks of a lost
# actor wait for resources as large as it had. A worker process keeps its model, so it is loaded once per worker.
_LOADER = Loader()  # of this worker process


def _evaluate_cell(config: EvalConfig, resources: Resources) -> dict[str, bytes]:
    """The files of the run folder, which travel back because nodes need not share a disk."""
    model = _LOADER(config, resources)
    with tempfile.TemporaryDirectory(prefix="voidpad-") as folder:
        evaluate(config, Path(folder), model=model, resources=resources)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def run_ray(
    left: Sequence[SweepCell], out: Path, *, resources: Resources, address: str | None = None
) -> Iterator[CellOutcome]:
    """Run the cells on the cluster, in whatever order they end."""
    try:
        import ray
    except ImportError:
        raise ConfigError(f"ray is not installed; {install_command('ray')}, or leave out --ray.") from None
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False)
        except (ValueError, ConnectionError) as error:
            where = f"ray-address {address!r}" if address else "ray"
            raise ConfigError(
                f"{where}: no cluster there ({first_line(error)}); check it with `ray status`."
            ) from None
    try:
        gpus = gpus_per_task(resources.device, ray.cluster_resources())  # type: ignore[no-untyped-call]
        remote = ray.remote(max_retries=-1, max_calls=0, num_cpus=1, num_gpus=gpus)(_evaluate_cell)
        running = {remote.remote(cell.config, resources): cell for cell in left}
        while running:
            (ready,), _ = ray.wait(list(running))
            cell = running.pop(ready)
            try:
                files = ray.get(ready)
            except ray.exceptions.RayTaskError as fault:
                if not isinstance(fault.cause, VoidpadError):
                    raise
                yield CellOutcome(cell, error=fault.cause)  # what voidpad refused on the worker
                continue
            folder = out / cell.folder
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run left
            with fresh_folder(folder) as draft:
                for name, content in files.items():
                    (draft / name).write_bytes(content)
            yield CellOutcome(cell, RunFolder(folder).results)
    finally:
        if started:
            ray.shutdown()
