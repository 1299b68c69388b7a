"""The folder of a run: its lock, its checkpoints, its metrics and its final model.

A checkpoint is written under another name and then renamed, so it is complete or absent, also after `kill -9` or on a
full disk. Nothing here follows a link or touches a file that no run of ours wrote.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from voidpad import models
from voidpad.errors import ConfigError, WeightsError, first_line
from voidpad.files import locked_folder, read_json, readable, store
from voidpad.models.card import README
from voidpad.training.recipe import LEARNING_FIELDS, TrainingRecipe, check

FINAL, METRICS, OPTIMIZER, PROGRESS = "model", "metrics.jsonl", "optimizer.pt", "progress.json"
ADAPTER = "adapter_model.safetensors"
NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Progress:
    """How far a run had come when a checkpoint was written, over all restarts."""

    update: int
    seconds: float
    tokens: int
    best: tuple[int, float] | None = None  # update and held-out loss of the best checkpoint

    def write(self, folder: Path) -> None:
        (folder / PROGRESS).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Progress:
        return cls(**read_json(folder / PROGRESS, ConfigError))


def locked(output: Path) -> AbstractContextManager[None]:
    """The run's folder, made if need be and locked against a second run in it. The first process of a run locks."""
    if int(os.environ.get("RANK", 0)):
        return nullcontext()
    return locked_folder(output, f"run.output: another process is training in {output}; wait for it.")


# Where a run begins


def start(recipe: TrainingRecipe, output: Path, resume: bool | str | Path) -> Path | None:
    """The checkpoint to continue from, or None for a new run."""
    last = latest(output)
    if not resume:
        found = next((name for name in (METRICS, FINAL) if os.path.lexists(output / name)), None)
        if last or found:
            kept = last.name if last else found
            raise ConfigError(
                f"run.output: {output} already holds {kept}; pass --resume, or name another folder."
            )
        return None
    chosen = last if resume is True else Path(resume)
    if chosen is None:
        return None
    card = models.read_card(chosen) if chosen.is_dir() else None
    if card is None:
        raise ConfigError(f"--from: {chosen} is not a checkpoint folder.")
    before = _learnt(check(card.recipe or {}, name=f"--resume: the recipe of {chosen}"))
    if changed := [name for name, value in _learnt(recipe).items() if before.get(name) != value]:
        names = ", ".join(changed)
        raise ConfigError(f"--resume: {names} differ from the recipe of {chosen}; start a new run.output.")
    return chosen


def _learnt(recipe: TrainingRecipe) -> dict[str, Any]:
    """The settings that a restart may not change, by their full names."""
    values = recipe.model_dump(mode="json")
    values["run"] = {name: values["run"][name] for name in LEARNING_FIELDS}
    found: dict[str, Any] = {}
    for section, part in values.items():
        fields = part.items() if isinstance(part, dict) else [("", part)]
        found |= {f"{section}.{name}".rstrip("."): value for name, value in fields}
    return found


def latest(output: Path) -> Path | None:
    """The newest checkpoint."""
    complete = _checkpoints(output)
    return complete[-1] if complete else None


def _checkpoints(output: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in output.glob("checkpoint-*") if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("checkpoint-")))


# Checkpoints


@contextmanager
def staged(output: Path, update: int) -> Iterator[Path]:
    """A folder to write a checkpoint into; it becomes `checkpoint-N` when the block ends well.

    A write that fails is one line that names the last good checkpoint.
    """
    final = output / f"checkpoint-{update}"
    _remove_leftovers(output)
    folder = output / f".{final.name}.tmp"
    try:
        folder.mkdir()
        yield folder
        for path in folder.rglob("*"):
            path.chmod(path.stat().st_mode | 0o044)  # safetensors would let only the owner read its files
            _sync(path)
        if final.exists():  # of a run that was continued from an earlier checkpoint
            final.replace(output / f".{final.name}.old.tmp")
        folder.replace(final)
        _sync(output)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
        last = latest(output)
        kept = f"the last good checkpoint is {last}" if last else "no earlier checkpoint exists"
        raise WeightsError(f"{final}: cannot be written ({first_line(error)}); {kept}.") from error
    finally:
        _remove_leftovers(output)


def _remove_leftovers(output: Path) -> None:
    """Delete what was being written, or about to be deleted, when a process was killed."""
    for folder in (*output.glob(".checkpoint-*.tmp"), *output.glob(f".{FINAL}.tmp")):
        shutil.rmtree(folder, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rotate(output: Path, keep: int, *, best: int | None) -> None:
    """Delete all but the newest `keep` checkpoints and that of update `best`."""
    for folder in _checkpoints(output)[:-keep]:
        if folder.name != f"checkpoint-{best}":
            folder.replace(output / f".{folder.name}.old.tmp")  # first, so that no half of it keeps its name
    _remove_leftovers(output)


def write_weights(folder: Path, model: models.Model, gathered: Mapping[str, Tensor] | None) -> None:
    """The network's weights, or those of its adapter. `gathered` are those of a sharded network."""
    net, weights = model.net, None
    if gathered is not None:
        weights = {name.removeprefix("net."): tensor for name, tensor in gathered.items()}
    if isinstance(net, PeftModel):
        net.save_pretrained(str(folder), state_dict=weights, save_embedding_layers=False)
        (folder / README).unlink(missing_ok=True)  # PEFT's is a form to be filled in
    else:
        net.save_pretrained(folder, state_dict=weights, save_original_format=False)
        model.tokenizer.save_pretrained(folder)


def read_weights(folder: Path, model: models.Model) -> dict[str, Tensor]:
    """The tensors of a checkpoint by the names that the network's parameters have."""
    if not model.adapted:
        files = sorted(folder.glob("model*.safetensors"))
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    # PEFT leaves the adapter's name out of its files.
    names = {name.replace(".default", ""): name for name, _ in model.net.named_parameters()}
    return {names[name]: tensor for name, tensor in load_file(folder / ADAPTER).items()}


def read_states(folder: Path) -> list[Any]:
    """The states of a checkpoint's optimizers."""
    path = folder / OPTIMIZER
    try:
        with readable(path, "optimizer"):
            states: list[Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, UnpicklingError):  # what torch raises on a damaged archive
        raise WeightsError(f"{path}: damaged; resume from another checkpoint.") from None
    return states


def export(model: models.Model, stored: Path | None, folder: Path, dtype: str | None) -> None:
    """Write the final model to `folder`: the network in memory, or the checkpoint `stored`."""
    if stored:
        model = models.load(stored)
    if dtype:
        model = replace(model, net=model.net.to(getattr(torch, dtype)))
    if folder.exists():  # of a run that went on after its end
        folder.replace(folder.with_name(f".{FINAL}.tmp"))
    models.save(model, folder)
    _remove_leftovers(folder.parent)


# Metrics


def append_metrics(output: Path, entries: list[dict[str, float]]) -> None:
    with (output / METRICS).open("a") as file:
        file.writelines(f"{json.dumps(entry)}\n" for entry in entries)


def trim_metrics(output: Path, update: int) -> None:
    """Delete the entries of the updates that a restart will make again, and a line that a killed process left torn.

    The file is written anew, so a link in its place is replaced, and what it points to stays as it is.
    """
    path = output / METRICS
    lines = path.read_text().splitlines() if path.exists() else []
    store(path, (f"{line}\n" for line in lines if line.endswith("}") and json.loads(line)["step"] <= update))
