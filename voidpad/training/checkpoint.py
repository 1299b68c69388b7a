"""The folder of a run: its lock, its checkpoints and its final model.

A checkpoint is written under another name and then renamed, so it is complete or absent, also after `kill -9` or on a
full disk. Nothing here follows a link or touches a file that no run of ours wrote.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from voidpad import models
from voidpad.errors import ConfigError, WeightsError, first_line
from voidpad.files import fresh_folder, locked_folder, readable
from voidpad.training.recipe import TrainingRecipe, check

FINAL, METRICS, OPTIMIZER, PROGRESS = "model", "metrics.jsonl", "optimizer.pt", "progress.json"


def locked(output: Path) -> AbstractContextManager[None]:
    """The run's folder, made if need be and locked against a second run in it. The first process of a run locks."""
    if int(os.environ.get("RANK", 0)):
        return nullcontext()
    return locked_folder(output, f"run.output: another process is training in {output}; wait for it.")


# Where a run begins


def find_start(recipe: TrainingRecipe, output: Path, *, resume: bool) -> Path | None:
    """The checkpoint to continue from, or None for a new run."""
    last = latest(output)
    if not resume:
        names = [last.name] if last else [METRICS, FINAL]
        if found := [name for name in names if os.path.lexists(output / name)]:
            raise ConfigError(
                f"run.output: {output} already holds {found[0]}; pass --resume, or name another folder."
            )
        return None
    if last is None:
        return None
    card = models.read_card(last)
    before = check(card.recipe if card else {}, name=f"--resume: the recipe of {last}").learnt()
    if changed := [name for name, value in recipe.learnt().items() if before.get(name) != value]:
        raise ConfigError(
            f"--resume: {', '.join(changed)} differ from the recipe of {last}; start a new run.output."
        )
    return last


def latest(output: Path) -> Path | None:
    """The newest checkpoint."""
    return next(reversed(_checkpoints(output)), None)


def _checkpoints(output: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    numbers = {path: path.name.removeprefix("checkpoint-") for path in output.glob("checkpoint-*")}
    found = [path for path, number in numbers.items() if number.isdecimal() and path.is_dir()]
    return sorted(found, key=lambda path: int(numbers[path]))


# Checkpoints


@contextmanager
def staged(final: Path) -> Iterator[Path]:
    """A folder to write a checkpoint into; it gets the name `final` when the block ends without an error.

    A write that fails is one line that names the last good checkpoint.
    """
    _remove_leftovers(final.parent)
    try:
        with fresh_folder(final) as folder:
            yield folder
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
        last = latest(final.parent)
        kept = f"the last good checkpoint is {last}" if last else "no earlier checkpoint exists"
        raise WeightsError(f"{final}: cannot be written ({first_line(error)}); {kept}.") from error


def _remove_leftovers(output: Path) -> None:
    """Delete what was being written, or about to be deleted, when a process was killed."""
    for folder in (*output.glob(".checkpoint-*.tmp"), *output.glob(f".{FINAL}.*tmp")):
        shutil.rmtree(folder, ignore_errors=True)


def rotate(output: Path, keep: int, best: Path | None) -> None:
    """Delete all but the newest `keep` checkpoints and the best one."""
    for folder in _checkpoints(output)[:-keep]:
        if folder != best:
            # A process that is killed meanwhile leaves no half of it under its name.
            folder.replace(output / f".{folder.name}.old.tmp")
    _remove_leftovers(output)


def read_weights(folder: Path, model: models.Model) -> dict[str, Tensor]:
    """The tensors of a checkpoint by the names that the network's parameters have."""
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with readable(file, "safetensors"):
            weights |= load_file(file)
    if not model.adapted:
        return weights
    # PEFT leaves the adapter's name out of its files.
    names = {name.replace(".default", ""): name for name, _ in model.net.named_parameters()}
    return {names[name]: tensor for name, tensor in weights.items()}


def read_states(folder: Path) -> list[Any]:
    """The states of a checkpoint's optimizers."""
    path = folder / OPTIMIZER
    with readable(path, "optimizer"):
        return list(torch.load(path, map_location="cpu", weights_only=True))


def export(model: models.Model, folder: Path, dtype: str | None) -> None:
    """Write the final model."""
    if dtype:
        model = replace(model, net=model.net.to(getattr(torch, dtype)))
    if folder.exists():  # of a run that went on after its end
        folder.replace(folder.with_name(f".{FINAL}.tmp"))
    models.save(model, folder)
    _remove_leftovers(folder.parent)
