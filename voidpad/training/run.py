"""Training from a recipe: `train(recipe)`, or `voidpad train RECIPE.toml`, or `torchrun -m voidpad.training.run`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

from voidpad import models
from voidpad.engine.compiled import compile_layers
from voidpad.errors import ConfigError
from voidpad.training import checkpoint
from voidpad.training import prepared as data
from voidpad.training.batches import MicroBatches, Share
from voidpad.training.recipe import Recipe
from voidpad.training.setup import micro_batches, network
from voidpad.training.sharding import ShardedTrainer
from voidpad.training.trainer import VoidTrainer, arguments, export
from voidpad.training.watch import FOREVER, Clock, Curve, StopByClock

FINAL, CURVE = "model", "metrics.jsonl"
# Settings a restart may change without changing what is learnt.
FREE = {
    "output",
    "steps",
    "epochs",
    "seconds",
    "log_every",
    "save_every",
    "keep",
    "report_to",
    "export",
    "compile",
    "residual",
    "micro_batch",
}


@dataclass(frozen=True)
class Trained:
    """What a call to `train` left behind."""

    folder: Path  # the final model, or the checkpoint to resume from
    finished: bool
    steps: int
    seconds: float
    tokens: int


def train(
    recipe: Recipe,
    *,
    resume: bool | str | Path = False,
    max_seconds: float | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Trained:
    """Run a recipe to its end, or until `max_seconds` have passed here; `resume` goes on from a checkpoint."""
    output = Path(recipe.run.output)
    start = _start(recipe, output, resume)
    if start and (ended := _ended(recipe, start)):
        return ended
    trainer = prepare(recipe, max_seconds=max_seconds, callbacks=callbacks)
    if start:
        trainer.clock.read(start)
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    finished, folder = _finished(recipe, trainer), output / f"checkpoint-{trainer.state.global_step}"
    if finished and trainer.args.should_save:
        # Sharded weights are gathered in the last checkpoint and nowhere else.
        model = models.load(folder) if recipe.run.fsdp else trainer.subject
        export(model, output / FINAL, recipe.run.export)
    trainer.accelerator.wait_for_everyone()
    folder = output / FINAL if finished else folder
    return Trained(folder, finished, trainer.state.global_step, trainer.clock.total, trainer.clock.tokens)


def prepare(
    recipe: Recipe, *, max_seconds: float | None = None, callbacks: Sequence[TrainerCallback] = ()
) -> VoidTrainer:
    """Everything up to the first step."""
    prepared = data.read(recipe.data.path)
    model = network(recipe, prepared)
    if recipe.run.checkpointing:
        model.net.gradient_checkpointing_enable({"use_reentrant": False})
    _compile(model, recipe)
    share = _share(recipe)
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    batches = micro_batches(recipe, model, prepared, share=share, device=device)
    reports = _reports(recipe)
    layer = type(model.net.get_decoder().layers[0]).__name__
    updates = _updates(recipe, batches)
    ours = recipe.run.fsdp and share.processes > 1 and not torch.cuda.is_available()
    trainer = (ShardedTrainer if ours else VoidTrainer)(
        model,
        recipe,
        batches,
        arguments=arguments(recipe, accumulation=share.accumulation, updates=updates, layer=layer),
        callbacks=[Curve(Path(recipe.run.output) / CURVE), *reports, *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StopByClock(trainer.clock, max_seconds=max_seconds, budget=recipe.run.seconds))
    return trainer


def _compile(model: models.Model, recipe: Recipe) -> None:
    if recipe.run.compile:
        # One compilation serves all layers. A released model under LoRA is bfloat16: fused kernels then round where
        # separate ones would, and the loss is that of the run without compilation.
        options = {"emulate_precision_casts": True} if recipe.lora else None
        compile_layers(model.net.get_decoder(), options=options)


def _share(recipe: Recipe) -> Share:
    rank, processes = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
    )
    run = recipe.run
    if run.global_batch % (run.micro_batch * processes):
        raise ConfigError(
            f"run.global_batch: {run.global_batch} is not a multiple of micro_batch {run.micro_batch} "
            f"x {processes} processes."
        )
    return Share(run.global_batch, run.micro_batch, rank, processes)


def _updates(recipe: Recipe, batches: MicroBatches) -> int:
    run = recipe.run
    if run.seconds:
        return FOREVER
    return run.steps or math.ceil((run.epochs or 0) * batches.updates_per_epoch)


def _finished(recipe: Recipe, trainer: VoidTrainer) -> bool:
    if recipe.run.seconds:
        return trainer.clock.total >= recipe.run.seconds
    return trainer.state.global_step >= trainer.args.max_steps


def _ended(recipe: Recipe, start: Path) -> Trained | None:
    """What a restart of a run that has already ended returns: there is nothing left to do."""
    clock, steps, folder = Clock(), checkpoint.step_of(start), Path(recipe.run.output) / FINAL
    clock.read(start)
    over = (
        clock.total >= recipe.run.seconds if recipe.run.seconds else steps >= (recipe.run.steps or math.inf)
    )
    return Trained(folder, True, steps, clock.total, clock.tokens) if over and folder.is_dir() else None


def _start(recipe: Recipe, output: Path, resume: bool | str | Path) -> Path | None:
    """The checkpoint to go on from, or None for a new run."""
    last = checkpoint.latest(output)
    if not resume:
        if last:
            raise ConfigError(
                f"run.output: {output} already holds {last.name}; pass --resume or choose another folder."
            )
        return None
    chosen = last if resume is True else Path(resume)
    if chosen is None:
        return None
    if not chosen.is_dir():
        raise ConfigError(f"--from: {chosen} is not a checkpoint folder.")
    _same_recipe(recipe, chosen)
    return chosen


def _same_recipe(recipe: Recipe, folder: Path) -> None:
    card = models.read_card(folder)
    if card is None:
        raise ConfigError(f"--resume: {folder} has no voidpad.json, so it is not a complete checkpoint.")
    now = recipe.model_dump(mode="json")
    changed = [
        f"{part}.{name}"
        for part, values in now.items()
        for name, value in (values.items() if isinstance(values, dict) else [("", values)])
        if (part, name) != ("run", name) or name not in FREE
        if value != _stored(card.recipe, part, name)
    ]
    if changed:
        raise ConfigError(
            f"--resume: {', '.join(changed)} differ from the recipe of {folder}; start a new run.output."
        )


def _stored(recipe: Any, part: str, name: str) -> Any:
    values = recipe.get(part)
    return values.get(name) if isinstance(values, dict) else values


def _reports(recipe: Recipe) -> list[TrainerCallback]:
    wanted = recipe.run.report_to
    if wanted is None:
        wanted = ("tensorboard",) if find_spec("tensorboard") else ()
    if not wanted or int(os.environ.get("RANK", 0)):
        return []
    from transformers.integrations import get_reporting_integration_callbacks
    from transformers.integrations.integration_utils import TensorBoardCallback

    found = [
        kind()
        for kind in get_reporting_integration_callbacks([name for name in wanted if name != "tensorboard"])
    ]
    if "tensorboard" in wanted:
        from torch.utils.tensorboard import SummaryWriter

        found.append(TensorBoardCallback(SummaryWriter(str(Path(recipe.run.output) / "tensorboard"))))
    return found


if __name__ == "__main__":
    from voidpad.commands.train import main

    main()
