"""Training from a recipe: `train(recipe)`, or `voidpad train RECIPE`, alone or under `accelerate launch`.

Read from top to bottom: `train` is a run from its start, or its last checkpoint, to the final model. `Run` builds what
the recipe names. `Run.updates` is the loop: each round makes one update of the weights (`_make_update`) and, where it
is due, a log entry (`_log`), the loss on the held-out examples (`evaluate`) and a checkpoint (`save`). `load` is the
way back from a checkpoint.

An update is an optimizer step on `run.global_batch` examples. It is computed in passes: a pass is one forward and
backward call. How the examples are divided into passes changes speed and memory, not the gradient (batches.py).
accelerate starts the processes, adds up their numbers and talks to the trackers. It prepares no model and no data:
passes are built where they are computed, and processes average their gradients once an update.

A restart is exact. Rows, noise, dropout and learning rate are functions of the seed and of the number of the update, so
a checkpoint holds weights, the optimizers' state and how far the run has come.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import LoggerType, ProjectConfiguration
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from voidpad.engine.packed import compile_layers
from voidpad.errors import ConfigError
from voidpad.files import read_json, store
from voidpad.models.checkpoint import load
from voidpad.models.save import write_network
from voidpad.training import checkpoint, setup
from voidpad.training.losses import KINDS, Pass, SlotLoss
from voidpad.training.optim import optimizers, rate_factor
from voidpad.training.prepared import Prepared, read
from voidpad.training.recipe import TrainingRecipe

Entry = dict[str, float]  # one line of metrics.jsonl
# How sharded weights and optimizer states are put together in the main process, and dealt out from there again.
GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
# Not strict: an adapter's checkpoint has no frozen weights, and those stay as they are.
SCATTER = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)


@dataclass(frozen=True)
class Trained:
    """What a call to `train` left behind."""

    folder: Path  # the final model, or the checkpoint to resume from
    finished: bool
    steps: int
    seconds: float  # of training, over all restarts
    tokens: int
    best: Path | None = None  # the checkpoint with the lowest held-out loss
    best_loss: float | None = None


def train(
    recipe: TrainingRecipe,
    *,
    resume: bool = False,
    max_seconds: float = math.inf,
    watch: Callable[[Run, list[Entry]], None] = lambda run, entries: None,
) -> Trained:
    """Run a recipe to its end, or until `max_seconds` have passed here.

    `resume` continues from the last checkpoint in run.output, if there is one. `watch` is called before the first
    update and after every update with the log entries made since.
    """
    output = Path(recipe.run.output)
    prepared = read(recipe.data.path)
    with checkpoint.locked(output):
        start = checkpoint.find_start(recipe, output, resume=resume)
        run = Run(recipe, prepared)
        if start:
            run.load(start)
        watch(run, [])
        for entries in run.updates(max_seconds):
            watch(run, entries)
        return run.finish()


class Run:
    """A run in one process: the network, its optimizers, its passes, and how far it has come."""

    def __init__(self, recipe: TrainingRecipe, prepared: Prepared | None = None) -> None:
        settings, cuda = recipe.run, torch.cuda.is_available()
        prepared = prepared or read(recipe.data.path)
        self.recipe, self.output = recipe, Path(settings.output)
        self.accelerator = Accelerator(
            cpu=not cuda,
            mixed_precision="no",  # `_forward` enters autocast itself
            log_with=_trackers(recipe) or None,
            project_config=ProjectConfiguration(logging_dir=str(self.output / "tensorboard")),
        )
        self.device, self.processes = self.accelerator.device, self.accelerator.num_processes
        self.bfloat16 = settings.computes_in_bfloat16(cuda=cuda)

        # The network, and its work: `passes[n]` are the passes of this process for update n.
        self.model = setup.model_to_train(recipe, prepared, self.device)
        self.compiled = setup.should_compile(recipe, examples=len(prepared.pairs))
        self.passes, self.held_out = setup.update_passes(
            recipe, self.model, prepared, self.accelerator, compiled=self.compiled
        )
        self.per_epoch = self.passes.updates_per_epoch
        # Updates of the whole run; None: it ends by the clock.
        self.total = settings.steps
        if settings.epochs:
            self.total = math.ceil(settings.epochs * self.per_epoch)
        self.save_every = settings.save_every
        if isinstance(settings.save_every, float):  # a share of the run
            self.save_every = max(1, round(settings.save_every * (self.total or 0)))

        # How the network is computed.
        if self.compiled:
            # A released model under LoRA is bfloat16: fused kernels then round where separate ones would, and the loss
            # is that of the run without compilation.
            options = {"emulate_precision_casts": True} if recipe.lora else None
            compile_layers(self.model.net.get_decoder(), options=options)
        # The network with the loss at its end: what a pass calls, and what FSDP shards.
        self.module: Any = SlotLoss(self.model.net).to(self.device)
        self.recomputing = False
        if settings.checkpointing is True:
            self._recompute_layers()
        # A process that no launcher started has nothing to share its weights with.
        self.sharded = settings.fsdp and torch.distributed.is_initialized()
        if self.sharded:
            mesh = init_device_mesh(self.device.type, (self.processes,))
            for layer in self.model.net.get_decoder().layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.module, mesh=mesh)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizers = optimizers(self.module, recipe.optim)

        # How far the run has come, over all restarts.
        self.update = 0  # updates that are done
        self.tokens = 0  # up to the last log entry
        self.best: tuple[int, float] | None = None  # update and held-out loss of the best checkpoint
        self._earlier_seconds = 0.0  # of training before this restart
        self._timed_from: float | None = None  # when the first update of this process was done
        # Sums since the last log entry, in this process. First row: loss and tokens; then for each of KINDS: cross
        # entropy and number of loss slots.
        self._sums = torch.zeros(1 + len(KINDS), 2, dtype=torch.float64, device=self.device)
        self._logged_update = 0
        self._logged_seconds: float | None = None  # None: this process has logged nothing yet

    @property
    def seconds(self) -> float:
        """Seconds of training over all restarts. Start-up and the first update, which may compile, do not count."""
        here = 0.0 if self._timed_from is None else time.monotonic() - self._timed_from
        return self._earlier_seconds + here

    @property
    def finished(self) -> bool:
        if self.total is None:
            return self.seconds >= (self.recipe.run.seconds or 0)
        return self.update >= self.total

    # The loop

    def updates(self, max_seconds: float = math.inf) -> Iterator[list[Entry]]:
        """Train to the end of the run, or until `max_seconds` have passed here. Yields the log entries of each update.

        A checkpoint is written every `run.save_every` updates and after the last one.
        """
        deadline = time.monotonic() + max_seconds
        self._start_reports()
        stop = self.finished
        while not stop:
            gradient_norm = self._make_update()
            self.update += 1
            if self._timed_from is None:
                self._timed_from = time.monotonic()
            stop = self._must_stop(deadline)
            save = stop or self.update % self.save_every == 0
            entries = []
            if save or self.update % self.recipe.run.log_every == 0:
                entries.append(self._log(gradient_norm))
            if save and self.held_out:
                held_out = self.evaluate()
                entries.append(held_out)
                if self.best is None or held_out["eval_loss"] < self.best[1]:
                    self.best = (self.update, held_out["eval_loss"])
            # Before the checkpoint: a restart deletes the entries of updates that it makes again, but adds none.
            self._report(entries)
            if save:
                self.save()
            yield entries
        for tracker in self.accelerator.trackers:  # `end_training` would end the process group, too
            tracker.finish()

    def _must_stop(self, deadline: float) -> bool:
        """Whether this was the last update, of the run or of this process."""
        if self.total is not None and self.update >= self.total:
            return True
        late = self.finished or time.monotonic() >= deadline
        if self.processes == 1:
            return late
        # Clocks differ, so the processes ask each other, but not after every update: that would cost time.
        if self.update % self.recipe.run.log_every:
            return False
        return bool(self.accelerator.reduce(torch.tensor(float(late), device=self.device), "sum"))

    def _make_update(self) -> Tensor:
        """One update of the weights; returns the norm of its gradient."""
        settings, optim = self.recipe.run, self.recipe.optim
        self._compute_gradients()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.processes > 1 and not self.sharded:
            # Here and not in the backward passes, as under DDP: processes may make different numbers of passes.
            for gradient in gradients:
                torch.distributed.all_reduce(gradient)
                gradient /= self.processes
        norm = torch.nn.utils.get_total_norm(gradients)
        if optim.clip:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, optim.clip, norm)

        if settings.seconds:
            # At least a thousandth of the warm-up: the clock stands at zero until the first update is done.
            progress = max(self.seconds / settings.seconds, 1e-3 * optim.warmup)
        else:
            progress = (self.update + 0.5) / (self.total or 1)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate_factor(optim, progress)
            optimizer.step()
            optimizer.zero_grad()
        return norm

    def _compute_gradients(self) -> None:
        """The passes of this process for one update, forward and backward.

        When a pass does not fit into memory the update begins again in smaller ones. Its gradients stay the same.
        """
        self.module.train()
        while True:
            # A seed for each update and process, so that dropout, too, is the same after a restart.
            update_seed = self.recipe.run.seed * 1_000_003 + self.update
            torch.manual_seed(update_seed * 4096 + self.accelerator.process_index)
            passes, sums = self.passes[self.update], torch.zeros_like(self._sums)
            try:
                # The loss is a weighted sum over slots, so the passes of an update add up.
                for one in passes:
                    loss, measured = self._forward(one)
                    loss.backward()
                    sums += measured
            except torch.OutOfMemoryError as error:
                self._make_room(passes, error)
            else:
                self._sums += sums
                return
            self.module.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _forward(self, one: Pass) -> tuple[Tensor, Tensor]:
        """The loss of a pass, and what it adds to `_sums`."""
        slots = one.slots
        with torch.autocast(self.device.type, torch.bfloat16) if self.bfloat16 else nullcontext():
            entropy = self.module(one.ids, slots.where, slots.label, one.inside, one.segments)
        loss = (entropy * slots.weight).sum()
        total = torch.stack([loss.detach().double(), torch.full_like(loss, one.tokens, dtype=torch.float64)])
        is_kind = (slots.kind[:, None] == torch.arange(len(KINDS), device=self.device)).double()
        by_kind = torch.stack([entropy.detach().double() @ is_kind, is_kind.sum(0)], 1)
        return loss, torch.cat([total[None], by_kind])

    def _make_room(self, passes: list[Pass], error: torch.OutOfMemoryError) -> None:
        """After these passes ran out of memory: make them half as large, or recompute layers in the backward pass.

        Passes below the size at which a GPU works at full speed, and single rows, are recomputed before they are
        halved.
        """
        largest = max(one.ids.numel() for one in passes)
        if self.sharded:  # the other processes wait inside this very pass
            raise ConfigError(f"out of memory in {largest:,} tokens; lower run.pass_tokens.") from error
        single_rows = len(passes) == self.passes.share.global_batch // self.processes
        small = largest <= setup.LEAST_GPU_TOKENS or single_rows
        if small and self.recipe.run.checkpointing == "auto" and not self.recomputing:
            self._recompute_layers()
        elif not single_rows:
            self.passes.limit.tokens = largest // 2
        else:
            raise ConfigError(f"out of memory in a pass of one row of {largest:,} tokens.") from error

    def _recompute_layers(self) -> None:
        """Gradient checkpointing: from now on the backward pass computes every layer again instead of keeping it."""
        self.model.net.gradient_checkpointing_enable({"use_reentrant": False})
        self.recomputing = True

    # What is measured

    def _log(self, gradient_norm: Tensor) -> Entry:
        """The entry of an update: means since the last entry and over all processes."""
        # Each process has the mean loss over its own rows.
        (loss, tokens), *by_kind = self.accelerator.reduce(self._sums, "sum").tolist()
        self.tokens += int(tokens)
        norm = gradient_norm.full_tensor() if isinstance(gradient_norm, DTensor) else gradient_norm
        entry = {
            "step": self.update,
            "epoch": self.update / self.per_epoch,
            "loss": loss / self.processes / (self.update - self._logged_update),
            **_mean_losses(by_kind),
            "grad_norm": float(norm),
            "learning_rate": self.optimizers[0].param_groups[0]["lr"],
            "seconds": round(self.seconds, 3),
            "tokens": self.tokens,
            "pass_tokens": self.passes.limit.tokens,
        }
        if self._logged_seconds is not None:
            entry["tokens_per_second"] = round(tokens / (self.seconds - self._logged_seconds))
        self._sums = torch.zeros_like(self._sums)
        self._logged_update, self._logged_seconds = self.update, self.seconds
        return entry

    @torch.no_grad()
    def evaluate(self) -> Entry:
        """The loss on the held-out examples, with the same noise every time. Every process measures all of them."""
        assert self.held_out is not None
        self.module.eval()
        count, loss, sums = self.held_out.rows.count, 0.0, torch.zeros_like(self._sums)
        for position in torch.arange(count).split(self.held_out.share.global_batch):
            for one in self.held_out.over(0, position):
                part, measured = self._forward(one)
                loss += float(part) * len(position)
                sums += measured
        return {
            "step": self.update,
            "epoch": self.update / self.per_epoch,
            "eval_loss": loss / count,
            **{f"eval_{name}": value for name, value in _mean_losses(sums[1:].tolist()).items()},
        }

    def _start_reports(self) -> None:
        """Begin metrics.jsonl and the trackers of run.report_to.

        The file is written anew, so a link in its place is not followed. Entries that a restart will make again are
        left out, and so is a line that a killed process left torn.
        """
        self.accelerator.wait_for_everyone()  # every process has looked for an older run in the folder
        if self.accelerator.is_main_process:
            path = self.output / checkpoint.METRICS
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            whole = (line for line in lines if line.endswith("}\n"))
            store(path, [line for line in whole if json.loads(line)["step"] <= self.update])
        self.accelerator.init_trackers("voidpad")
        for tracker in self.accelerator.trackers:
            if tracker.name != "tensorboard":  # which would begin another folder for them
                tracker.store_init_configuration(self.recipe.model_dump(mode="json"))

    def _report(self, entries: list[Entry]) -> None:
        if self.accelerator.is_main_process and entries:
            with (self.output / checkpoint.METRICS).open("a") as file:
                file.writelines(f"{json.dumps(entry)}\n" for entry in entries)
        for entry in entries:
            self.accelerator.log({k: v for k, v in entry.items() if k != "step"}, step=self.update)

    # Checkpoints

    def save(self) -> None:
        """Write `checkpoint-N`, complete or not at all.

        Sharded tensors are gathered, so it loads on any number of processes.
        """
        weights: dict[str, Any] | None = None  # those of the network
        states: list[Any] = [optimizer.state_dict() for optimizer in self.optimizers]
        if self.sharded:
            gathered = get_model_state_dict(self.module, options=GATHER)
            weights = {name.removeprefix("net."): tensor for name, tensor in gathered.items()}
            states = [get_optimizer_state_dict(self.module, self.optimizers[0], options=GATHER)]
        if self.accelerator.is_main_process:
            with checkpoint.staged(self._checkpoint(self.update)) as folder:
                write_network(self.model, folder, weights)
                torch.save(states, folder / checkpoint.OPTIMIZER)
                progress = {"seconds": self.seconds, "tokens": self.tokens, "best": self.best}
                store(folder / checkpoint.PROGRESS, [json.dumps({"update": self.update, **progress})])
                self.model.card.write(folder)  # last, because without its card a checkpoint does not load
            checkpoint.rotate(self.output, self.recipe.run.keep, self._best_checkpoint())
        self.accelerator.wait_for_everyone()

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        progress = read_json(folder / checkpoint.PROGRESS, ConfigError)
        self.update = self._logged_update = progress["update"]
        self._earlier_seconds, self.tokens = progress["seconds"], progress["tokens"]
        self.best = progress["best"]
        weights: dict[str, Any] = {}
        states: list[Any] = [{}]
        if self.accelerator.is_main_process or not self.sharded:
            weights = checkpoint.read_weights(folder, self.model)
            states = checkpoint.read_states(folder)
        if self.sharded:  # the main process deals out what it has read
            weights = {f"net.{name}": tensor for name, tensor in weights.items()}
            set_model_state_dict(self.module, weights, options=SCATTER)
            set_optimizer_state_dict(self.module, self.optimizers[0], states[0], options=SCATTER)
            return
        self.model.net.load_state_dict(weights, strict=False)  # an adapter's has no frozen weights
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def finish(self) -> Trained:
        """Export the final model if the run is at its end, and say what there is."""
        last, final, finished = self._checkpoint(self.update), self.output / checkpoint.FINAL, self.finished
        if finished and self.accelerator.is_main_process:
            model = load(last) if self.sharded else self.model
            checkpoint.export(model, final, self.recipe.run.export)
        self.accelerator.wait_for_everyone()
        return Trained(
            folder=final if finished else last,
            finished=finished,
            steps=self.update,
            seconds=self.seconds,
            tokens=self.tokens,
            best=self._best_checkpoint(),
            best_loss=self.best[1] if self.best else None,
        )

    def _checkpoint(self, update: int) -> Path:
        return self.output / f"checkpoint-{update}"

    def _best_checkpoint(self) -> Path | None:
        """The checkpoint with the lowest held-out loss."""
        return self._checkpoint(self.best[0]) if self.best else None


def _mean_losses(by_kind: list[list[float]]) -> Entry:
    """The mean cross entropy of each kind of loss slot, from the sums and counts of KINDS."""
    return {f"loss_{name}": total / n for name, (total, n) in zip(KINDS, by_kind, strict=True) if n}


def _trackers(recipe: TrainingRecipe) -> list[str]:
    """The services to report to, checked to be installed; by default TensorBoard where it is."""
    names = recipe.run.report_to
    if names is None:
        return ["tensorboard"] if find_spec("tensorboard") else []
    for name in names:
        if name not in LoggerType or find_spec(name) is None:
            known = ", ".join(LoggerType.list())
            raise ConfigError(f"run.report_to: {name!r} is not installed, or is none of {known}.")
    return list(names)
