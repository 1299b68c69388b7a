"""Training from a recipe: `train(recipe)`, or `voidpad train RECIPE.toml`, or `torchrun -m voidpad.commands.train`."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

from voidpad import models
from voidpad.engine import packed
from voidpad.engine.compiled import compile_layers
from voidpad.errors import ConfigError
from voidpad.training import checkpoint
from voidpad.training import prepared as data
from voidpad.training.batches import BatchShare
from voidpad.training.memory_estimate import TrainingMemory
from voidpad.training.passes import PassLimit
from voidpad.training.recipe import TrainingRecipe, check
from voidpad.training.setup import network, training_device, update_passes
from voidpad.training.sharding import ShardedTrainer
from voidpad.training.trainer import VoidTrainer, arguments, export
from voidpad.training.watch import FOREVER, Curve, StopByClock, TrainingClock

FINAL, CURVE = "model", "metrics.jsonl"
# Settings of [run] that a restart may change, because they do not change what is learnt.
FREE = {"output", "steps", "epochs", "seconds", "log_every", "save_every", "keep", "choose"}
FREE |= {"report_to", "export", "compile", "residual", "pass_tokens", "checkpointing"}
LONG = (300, 600.0)  # updates or seconds of a run that compilation, a minute or two, pays for
# Parameters from which on a GPU computes rows end to end: faster at 7.6 billion, slower than padding at 2.5 million.
LARGE = 1_000_000_000
# Parameters times tokens that a GPU computes in the time which the host needs to launch a pass: an estimate for 20 ms.
LAUNCHED = 1e12


@dataclass(frozen=True)
class Trained:
    """What a call to `train` left behind."""

    folder: Path  # the final model, or the checkpoint to resume from
    finished: bool
    steps: int
    seconds: float
    tokens: int
    best: Path | None = None  # the checkpoint with the lowest held-out loss
    best_loss: float | None = None


@dataclass(frozen=True)
class RunFacts:
    """What a run is going to do, known before its first step."""

    device: str
    processes: int
    precision: str
    parameters: int
    trainable: int
    examples: int  # rows of an epoch
    held_out: int
    updates: int  # of the whole run; FOREVER if it ends by the clock
    updates_per_epoch: int
    memory: int  # bytes on each device, estimated
    pass_tokens: int  # the most tokens computed at once
    passes: int  # of an update in each process, as in the first one
    packed: bool  # rows lie end to end in a pass, without padding between them
    layers: int
    checkpointed: int  # layers that are computed again in the backward pass
    compiled: bool


def train(
    recipe: TrainingRecipe,
    *,
    resume: bool | str | Path = False,
    max_seconds: float | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    announce: Callable[[RunFacts], None] = lambda facts: None,
) -> Trained:
    """Run a recipe to its end, or until `max_seconds` have passed here; `resume` continues from a checkpoint.

    `announce` is called with the facts of the run before its first step.
    """
    output = Path(recipe.run.output)
    start = _start(recipe, output, resume)
    if start and (ended := _ended(recipe, start)):
        return ended
    trainer = prepare(recipe, max_seconds=max_seconds, callbacks=callbacks)
    announce(run_facts(trainer))
    if start:
        trainer.clock.read(start)
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    last = output / f"checkpoint-{trainer.state.global_step}"
    best_step = trainer.state.best_global_step if trainer.held_out else None
    best = output / f"checkpoint-{best_step}" if best_step else None
    finished = trainer.state.global_step >= trainer.args.max_steps
    if recipe.run.seconds:
        finished = trainer.clock.total >= recipe.run.seconds
    if finished and trainer.args.should_save:
        chosen = best if best and recipe.run.choose == "best" else last
        # Sharded weights are gathered in checkpoints and nowhere else.
        model = models.load(chosen) if recipe.run.fsdp or chosen != last else trainer.subject
        export(model, output / FINAL, recipe.run.export)
    trainer.accelerator.wait_for_everyone()
    return Trained(
        output / FINAL if finished else last,
        finished,
        trainer.state.global_step,
        trainer.clock.total,
        trainer.clock.tokens,
        best,
        trainer.state.best_metric if best else None,
    )


def prepare(
    recipe: TrainingRecipe, *, max_seconds: float | None = None, callbacks: Sequence[TrainerCallback] = ()
) -> VoidTrainer:
    """Everything up to the first step."""
    prepared = data.read(recipe.data.path)
    model = network(recipe, prepared)
    compiled = compiles(recipe, examples=len(prepared.pairs))
    if compiled:
        # A released model under LoRA is bfloat16: fused kernels then round where separate ones would, and the loss
        # is that of the run without compilation.
        options = {"emulate_precision_casts": True} if recipe.lora else None
        compile_layers(model.net.get_decoder(), options=options)
    share, limit = _share(recipe), pass_limit(recipe, compiled=compiled, parameters=model.parameters)
    if limit.packed:
        model.net.set_attn_implementation(packed.NAME)
    batches, held_out = update_passes(recipe, model, prepared, share=share, limit=limit)
    reports = _reports(recipe)
    layer = type(model.net.get_decoder().layers[0]).__name__
    run = recipe.run
    updates = run.steps or math.ceil((run.epochs or 0) * batches.updates_per_epoch)
    if run.seconds:
        updates = FOREVER
    # accelerate shards on GPUs only.
    trainer_class = VoidTrainer
    if recipe.run.fsdp and share.processes > 1 and not torch.cuda.is_available():
        trainer_class = ShardedTrainer
    trainer = trainer_class(
        model,
        recipe,
        batches,
        held_out=held_out,
        arguments=arguments(recipe, updates=updates, layer=layer),
        callbacks=[Curve(Path(recipe.run.output) / CURVE), *reports, *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StopByClock(trainer.clock, max_seconds=max_seconds, budget=recipe.run.seconds))
    memory = TrainingMemory(recipe, model.net, share.processes)
    limit.tokens, checkpointed = memory.fit(_available(share.processes), batches.rows.longest)
    trainer.checkpoint_layers(checkpointed)
    trainer.compiled = compiled
    return trainer


def compiles(recipe: TrainingRecipe, *, examples: int) -> bool:
    """Whether the layers are compiled. `auto`: on a GPU, in a run long enough to earn the time back."""
    run = recipe.run
    if run.compile != "auto":
        return run.compile
    updates = run.steps or (run.epochs or 0) * examples / run.global_batch
    long = updates >= LONG[0] or (run.seconds or 0) >= LONG[1]
    return long and not run.fsdp and recipe.model.quantize is None and _can_compile()


def _can_compile() -> bool:
    """Whether torch.compile works here: on a GPU it needs triton, which builds its launchers with a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and compiler is not None


def pass_limit(recipe: TrainingRecipe, *, compiled: bool, parameters: int) -> PassLimit:
    """How rows lie in a pass; how many fit is found once the network is on its device.

    They lie end to end on a CPU, where attention runs row by row, and for LARGE networks in half precision on a GPU,
    by a variable-length kernel. Rows of one length need no such thing, compiled code without the kernel has few shapes
    only if rows are padded, and a `model.attention` that the recipe names is used as it is. A GPU computes padding of a
    small network faster than the host launches another pass.
    """
    uniform = recipe.data.layout == "packed" or isinstance(recipe.padding.width, int)
    cuda = torch.cuda.is_available()
    half = recipe.run.computes_in_bfloat16(cuda=cuda)
    kernel = cuda and half and parameters >= LARGE and packed.kernel_exists()
    small = int(LAUNCHED / parameters) if cuda else 0
    if uniform or recipe.model.attention:
        return PassLimit(multiple=32 if compiled and not uniform else 1, small=small)
    if kernel or not (cuda or compiled):
        return PassLimit(packed=True, multiple=128 if kernel else 1)
    return PassLimit(multiple=32 if compiled else 1, small=small)


def _available(processes: int) -> int | None:
    """Bytes that training may take on this device, the weights that are there already included; None: no limit."""
    if not torch.cuda.is_available():
        return None
    here = torch.device(training_device())
    free = torch.cuda.mem_get_info(here)[0] + torch.cuda.memory_reserved(here)
    if processes == 1:
        return free
    found = torch.tensor(free, device=here)  # the same for all, because sharded processes must pass alike
    torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MIN)
    return int(found)


def run_facts(trainer: VoidTrainer) -> RunFacts:
    """What the trainer is going to do. The device's memory is estimated from shapes."""
    recipe, parameters = trainer.recipe, list(trainer.subject.net.parameters())
    device = str(trainer.args.device.type)
    if device == "cuda":
        device = f"{torch.cuda.get_device_name(trainer.args.device)} ({trainer.args.device})"
    quantized = recipe.model.quantize
    weights = {str(p.dtype).removeprefix("torch.") for p in parameters if p.is_floating_point()}
    precision = " and ".join([*([quantized] if quantized else []), *sorted(weights)]) + " weights"
    if trainer.args.bf16:
        precision += ", computed in bfloat16"
    rows, planned, limit = trainer.batches.rows, trainer.batches.planned(0), trainer.batches.limit
    memory = TrainingMemory(recipe, trainer.subject.net, trainer.args.world_size)
    return RunFacts(
        device=device,
        processes=trainer.args.world_size,
        precision=precision,
        parameters=trainer.subject.parameters,
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        examples=rows.count,
        held_out=trainer.held_out.rows.count if trainer.held_out else 0,
        updates=trainer.args.max_steps,
        updates_per_epoch=trainer.batches.updates_per_epoch,
        memory=memory.estimate(max(map(limit.size, planned)), trainer.checkpointed),
        pass_tokens=limit.tokens,
        passes=len(planned),
        packed=limit.packed,
        layers=memory.layers,
        checkpointed=trainer.checkpointed,
        compiled=trainer.compiled,
    )


def _share(recipe: TrainingRecipe) -> BatchShare:
    rank, processes = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
    )
    run = recipe.run
    if run.global_batch % (run.micro_batch * processes):
        raise ConfigError(
            f"run.global_batch: {run.global_batch} is not a multiple of micro_batch {run.micro_batch} "
            f"x {processes} processes."
        )
    return BatchShare(run.global_batch, run.micro_batch, rank, processes, even=run.fsdp)


def _ended(recipe: TrainingRecipe, start: Path) -> Trained | None:
    """What a restart of a run that has already ended returns: there is nothing left to do."""
    clock, steps, folder = TrainingClock(), checkpoint.step_of(start), Path(recipe.run.output) / FINAL
    clock.read(start)
    over = (
        clock.total >= recipe.run.seconds if recipe.run.seconds else steps >= (recipe.run.steps or math.inf)
    )
    return Trained(folder, True, steps, clock.total, clock.tokens) if over and folder.is_dir() else None


def _start(recipe: TrainingRecipe, output: Path, resume: bool | str | Path) -> Path | None:
    """The checkpoint to continue from, or None for a new run."""
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


def _same_recipe(recipe: TrainingRecipe, folder: Path) -> None:
    card = models.read_card(folder)
    if card is None:
        raise ConfigError(f"--resume: {folder} has no voidpad.json, so it is not a complete checkpoint.")
    before = check(card.recipe or {}, name=f"--resume: the recipe of {folder}").model_dump(mode="json")
    now = recipe.model_dump(mode="json")
    changed = []
    for section, values in now.items():
        if not isinstance(values, dict) or not isinstance(before[section], dict):
            changed += [section] if values != before[section] else []
            continue
        names = [name for name in values if section != "run" or name not in FREE]
        changed += [f"{section}.{name}" for name in names if values[name] != before[section][name]]
    if changed:
        raise ConfigError(
            f"--resume: {', '.join(changed)} differ from the recipe of {folder}; start a new run.output."
        )


def _reports(recipe: TrainingRecipe) -> list[TrainerCallback]:
    """Callbacks of the services in run.report_to; by default TensorBoard, where it is installed."""
    names = recipe.run.report_to
    if names is None:
        names = ("tensorboard",) if find_spec("tensorboard") else ()
    if not names or int(os.environ.get("RANK", 0)):
        return []
    from transformers.integrations.integration_utils import (
        TensorBoardCallback,
        get_reporting_integration_callbacks,
    )

    callbacks: list[TrainerCallback] = []
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"run.report_to: {name!r} is not installed; pip install {name}, or leave it out."
            )
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(Path(recipe.run.output) / "tensorboard"))
            callbacks.append(TensorBoardCallback(writer))
            continue
        try:
            callbacks += [kind() for kind in get_reporting_integration_callbacks([name])]
        except (ValueError, RuntimeError, ImportError) as error:
            raise ConfigError(
                f"run.report_to: {name!r} cannot be used ({str(error).splitlines()[0]})."
            ) from None
    return callbacks
