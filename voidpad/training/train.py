"""Training from a recipe: `train(recipe)`, or `voidpad train RECIPE`, alone or under `accelerate launch`.

How to read this module: `train` is a run from its start, or its last checkpoint, to the final model. `Run` builds what
the recipe names. `Run.updates` is the loop: each round makes one update (`_update`: the passes of this process, forward
and backward, the mean over processes, the optimizers' step) and, where it is due, a log entry (`_log`), the loss on the
held-out examples (`evaluate`) and a checkpoint (`save`). `load` is the way back from a checkpoint.

A restart is exact. Rows, noise, dropout and learning rate are functions of the seed and of the number of the update, so
a checkpoint holds weights, the optimizers' state and how far the run has come.
"""

from __future__ import annotations

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
from voidpad.training import checkpoint, setup
from voidpad.training import prepared as data
from voidpad.training.losses import KINDS, Pass, SlotLoss
from voidpad.training.optim import optimizers, rate_factor
from voidpad.training.recipe import TrainingRecipe

Entry = dict[str, float]  # one line of metrics.jsonl
# A pass of fewer tokens leaves a GPU's matrix products below full speed: rather than halve it, recompute layers.
EFFICIENT = 2048
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
    resume: bool | str | Path = False,
    max_seconds: float | None = None,
    watch: Callable[[Run, list[Entry]], None] = lambda run, entries: None,
) -> Trained:
    """Run a recipe to its end, or until `max_seconds` have passed here.

    `resume` continues from the last checkpoint in run.output, or from the one it names. `watch` is called before the
    first update and after every update with the log entries made since.
    """
    output = Path(recipe.run.output)
    prepared = data.read(recipe.data.path)
    with checkpoint.locked(output):
        start = checkpoint.start(recipe, output, resume)
        run = Run(recipe, prepared)
        if start:
            run.load(start)
        watch(run, [])
        for entries in run.updates(max_seconds):
            watch(run, entries)
        return run.end()


class Run:
    """A run in one process: the network, its optimizers, its passes, and how far it has come."""

    def __init__(self, recipe: TrainingRecipe, prepared: data.Prepared | None = None) -> None:
        run, cuda = recipe.run, torch.cuda.is_available()
        prepared = prepared or data.read(recipe.data.path)
        self.recipe, self.output = recipe, Path(run.output)
        self.accelerator = Accelerator(
            cpu=not cuda,
            mixed_precision="no",  # what computes in bfloat16 is said in `_forward`
            log_with=_trackers(recipe) or None,
            project_config=ProjectConfiguration(logging_dir=str(self.output / "tensorboard")),
        )
        self.device, self.processes = self.accelerator.device, self.accelerator.num_processes
        self.half = run.computes_in_bfloat16(cuda=cuda)
        self.model = setup.network(recipe, prepared, self.device)
        self.compiled = setup.compiles(recipe, examples=len(prepared.pairs))
        self.passes, self.held_out = setup.update_passes(
            recipe, self.model, prepared, self.accelerator, compiled=self.compiled
        )
        self.per_epoch = self.passes.updates_per_epoch
        # None: the run ends by the clock.
        self.total = run.steps or (math.ceil(run.epochs * self.per_epoch) if run.epochs else None)
        self.save_every = run.save_every
        if isinstance(run.save_every, float):
            self.save_every = max(1, round(run.save_every * (self.total or 0)))

        if self.compiled:
            # A released model under LoRA is bfloat16: fused kernels then round where separate ones would, and the loss
            # is that of the run without compilation.
            options = {"emulate_precision_casts": True} if recipe.lora else None
            compile_layers(self.model.net.get_decoder(), options=options)
        self.module: Any = SlotLoss(self.model.net, residual=getattr(torch, run.residual)).to(self.device)
        self.checkpointed = 0  # layers that are computed again in the backward pass
        if run.checkpointing is True:
            self.checkpoint_layers()
        # A process that no launcher started has nothing to share its weights with.
        self.sharded = run.fsdp and torch.distributed.is_initialized()
        if self.sharded:
            mesh = init_device_mesh(self.device.type, (self.processes,))
            for layer in self.model.net.get_decoder().layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.module, mesh=mesh)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizers = optimizers(self.module, recipe.optim)

        self.update = 0  # updates made, over all restarts; as of the last log entry are seconds and tokens
        self.tokens = 0
        self.best: tuple[int, float] | None = None  # update and loss of the best checkpoint
        self._seconds = 0.0  # of training before this restart
        self._began = time.monotonic()
        self._warm: float | None = None  # when the first update of this process was done
        # Since the last log entry, of this process: the loss, tokens, and cross entropy and slots of each kind.
        self._sums = torch.zeros(2 + 2 * len(KINDS), dtype=torch.float64, device=self.device)
        self._logged = (0, 0.0)  # update and seconds at the last log entry

    @property
    def seconds(self) -> float:
        """Seconds of training over all restarts. Start-up and the first update, which may compile, do not count."""
        return self._seconds + (0.0 if self._warm is None else time.monotonic() - self._warm)

    @property
    def finished(self) -> bool:
        if self.total is None:
            return self.seconds >= (self.recipe.run.seconds or 0)
        return self.update >= self.total

    # The loop

    def updates(self, max_seconds: float | None = None) -> Iterator[list[Entry]]:
        """Train to the end of the run, or until `max_seconds` have passed here. Yields the log entries of each update.

        A checkpoint is written every `run.save_every` updates and after the last one.
        """
        self._began, first = time.monotonic(), self.update
        self._start_reports()
        stop = self.finished
        while not stop:
            norm = self._update()
            self.update += 1
            if self.update == first + 1:
                self._warm = time.monotonic()
            stop = self._must_stop(max_seconds)
            save = stop or self.update % self.save_every == 0
            entries = []
            if save or self.update % self.recipe.run.log_every == 0:
                entries.append(self._log(norm))
            if save and self.held_out:
                entries.append(self.evaluate())
                if self.best is None or entries[-1]["eval_loss"] < self.best[1]:
                    self.best = (self.update, entries[-1]["eval_loss"])
            # Before the checkpoint: a restart deletes the entries of updates that it makes again, but adds none.
            self._report(entries)
            if save:
                self.save()
            yield entries
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def _must_stop(self, max_seconds: float | None) -> bool:
        """Whether this was the last update, of the run or of this process."""
        if self.total is not None and (self.finished or max_seconds is None):
            return self.finished
        spent = self.finished or time.monotonic() - self._began >= (max_seconds or math.inf)
        if self.processes == 1:
            return spent
        if self.update % self.recipe.run.log_every:
            return False  # clocks differ, so processes agree by a message, which not every update is worth
        return bool(self.accelerator.reduce(torch.tensor(float(spent), device=self.device), "sum"))

    def _update(self) -> Tensor:
        """One update of the weights; returns the norm of its gradient.

        When a pass does not fit into memory the update begins again in smaller ones. Its gradients stay the same.
        """
        run, optim = self.recipe.run, self.recipe.optim
        self.module.train()
        while True:
            # So that dropout, too, is the same after a restart.
            torch.manual_seed((run.seed * 1_000_003 + self.update) * 4096 + self.accelerator.process_index)
            passes, sums = self.passes[self.update], torch.zeros_like(self._sums)
            try:
                # The loss is a weighted sum over slots, so the passes of an update add up.
                for one in passes:
                    loss, found = self._forward(one)
                    loss.backward()
                    sums += found
                break
            except torch.OutOfMemoryError as error:
                self._make_room(passes, error)
            self.module.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        self._sums += sums

        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.processes > 1 and not self.sharded:
            # Processes meet here, once an update, and not inside their backward passes as under DDP, because they may
            # make different numbers of passes.
            for gradient in gradients:
                torch.distributed.all_reduce(gradient)
                gradient /= self.processes
        norm = torch.nn.utils.get_total_norm(gradients)
        if optim.clip:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, optim.clip, norm)

        if run.seconds:
            progress = max(self.seconds / run.seconds, 1e-3 * optim.warmup)
        else:
            progress = (self.update + 0.5) / (self.total or 1)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate_factor(optim, progress)
            optimizer.step()
            optimizer.zero_grad()
        return norm

    def _forward(self, one: Pass) -> tuple[Tensor, Tensor]:
        """The loss of a pass, and what it adds to `_sums`."""
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            entropy = self.module(one.ids, one.where, one.label, one.inside, one.packed)
        loss = (entropy * one.weight).sum()
        member = (one.kind[:, None] == torch.arange(len(KINDS), device=self.device)).double()
        tokens = torch.full_like(loss, one.tokens, dtype=torch.float64)
        sums = [loss.detach()[None], tokens[None], entropy.detach().double() @ member, member.sum(0)]
        return loss, torch.cat(sums)

    def _make_room(self, passes: list[Pass], error: torch.OutOfMemoryError) -> None:
        """Make the passes half as large. Small ones, and single rows, first have all layers recomputed."""
        largest = max(one.ids.numel() for one in passes)
        if self.sharded:  # the other processes wait inside this very pass
            raise ConfigError(
                f"out of memory in a pass of {largest:,} tokens; lower run.pass_tokens."
            ) from error
        single_rows = len(passes) == len(self.passes.share.rows())
        small = largest <= EFFICIENT or single_rows
        if small and self.recipe.run.checkpointing == "auto" and not self.checkpointed:
            self.checkpoint_layers()
        elif not single_rows:
            self.passes.limit.tokens = largest // 2
        else:
            raise ConfigError(f"out of memory in a pass of one row of {largest:,} tokens.") from error

    def checkpoint_layers(self) -> None:
        """Compute every layer again in the backward pass, from now on, instead of keeping what it computed."""
        self.model.net.gradient_checkpointing_enable({"use_reentrant": False})
        self.checkpointed = len(self.model.net.get_decoder().layers)

    # What is measured

    def _log(self, norm: Tensor) -> Entry:
        """The entry of an update: means since the last entry and over all processes."""
        update, seconds = self._logged
        loss, tokens, *slots = self.accelerator.reduce(self._sums, "sum").tolist()
        self.tokens += int(tokens)
        entry = {
            "step": self.update,
            "epoch": self.update / self.per_epoch,
            "loss": loss / self.processes / (self.update - update),
            **_means(slots),
            "grad_norm": float(norm.full_tensor() if isinstance(norm, DTensor) else norm),
            "learning_rate": self.optimizers[0].param_groups[0]["lr"],
            "seconds": round(self.seconds, 3),
            "tokens": self.tokens,
            "pass_tokens": self.passes.limit.tokens,
        }
        # Not in the first entry of a process, whose first update is not timed.
        if self.seconds > seconds > self._seconds:
            entry["tokens_per_second"] = round(tokens / (self.seconds - seconds))
        self._sums = torch.zeros_like(self._sums)
        self._logged = (self.update, self.seconds)
        return entry

    @torch.no_grad()
    def evaluate(self) -> Entry:
        """The loss on the held-out examples, with the same noise every time. Every process measures all of them."""
        assert self.held_out is not None
        self.module.eval()
        count, loss, slots = self.held_out.rows.count, 0.0, torch.zeros_like(self._sums[2:])
        for position in torch.arange(count).split(self.held_out.share.global_batch):
            for one in self.held_out.over(0, position):
                found, sums = self._forward(one)
                loss += float(found) * len(position)
                slots += sums[2:]
        return {
            "step": self.update,
            "epoch": self.update / self.per_epoch,
            "eval_loss": loss / count,
            **{f"eval_{name}": value for name, value in _means(slots.tolist()).items()},
        }

    def _start_reports(self) -> None:
        """Begin metrics.jsonl and the trackers of run.report_to. Entries that a restart will make again are deleted."""
        self.accelerator.wait_for_everyone()  # every process has looked for an older run in the folder
        if self.accelerator.is_main_process:
            checkpoint.trim_metrics(self.output, self.update)
        self.accelerator.init_trackers("voidpad")
        for tracker in self.accelerator.trackers:
            if tracker.name != "tensorboard":  # which would begin another folder for them
                tracker.store_init_configuration(self.recipe.model_dump(mode="json"))

    def _report(self, entries: list[Entry]) -> None:
        if self.accelerator.is_main_process and entries:
            checkpoint.append_metrics(self.output, entries)
        for entry in entries:
            self.accelerator.log({k: v for k, v in entry.items() if k != "step"}, step=self.update)

    # Checkpoints

    def save(self) -> None:
        """Write `checkpoint-N`, complete or not at all. Sharded tensors are gathered, so it loads on any number of
        processes."""
        weights: dict[str, Any] | None = None
        states: list[Any] = [optimizer.state_dict() for optimizer in self.optimizers]
        if self.sharded:
            weights = get_model_state_dict(self.module, options=GATHER)
            states = [get_optimizer_state_dict(self.module, self.optimizers[0], options=GATHER)]
        if self.accelerator.is_main_process:
            with checkpoint.staged(self.output, self.update) as folder:
                checkpoint.write_weights(folder, self.model, weights)
                torch.save(states, folder / checkpoint.OPTIMIZER)
                checkpoint.Progress(self.update, self.seconds, self.tokens, self.best).write(folder)
                self.model.card.write(folder)  # last, because without its card a checkpoint does not load
            checkpoint.rotate(self.output, self.recipe.run.keep, best=self.best[0] if self.best else None)
        self.accelerator.wait_for_everyone()

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        progress = checkpoint.Progress.read(folder)
        self.update, self._seconds, self.tokens = progress.update, progress.seconds, progress.tokens
        self.best, self._logged = progress.best, (progress.update, progress.seconds)
        weights: dict[str, Tensor] = {}
        states: list[Any] = [{}]
        if self.accelerator.is_main_process or not self.sharded:
            weights = checkpoint.read_weights(folder, self.model)
            states = checkpoint.read_states(folder)
        if self.sharded:
            named: dict[str, Any] = {f"net.{name}": tensor for name, tensor in weights.items()}
            set_model_state_dict(self.module, named, options=SCATTER)
            set_optimizer_state_dict(self.module, self.optimizers[0], states[0], options=SCATTER)
            return
        self.model.net.load_state_dict(weights, strict=False)  # an adapter's has no frozen weights
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def end(self) -> Trained:
        """Export the final model if the run is finished, and say what there is."""
        last = self.output / f"checkpoint-{self.update}"
        best = self.output / f"checkpoint-{self.best[0]}" if self.best else None
        finished = self.finished
        if finished and self.accelerator.is_main_process:
            chosen = best if best and self.recipe.run.choose == "best" else last
            stored = chosen if self.sharded or chosen != last else None
            checkpoint.export(self.model, stored, self.output / checkpoint.FINAL, self.recipe.run.export)
        self.accelerator.wait_for_everyone()
        folder = self.output / checkpoint.FINAL if finished else last
        lowest = self.best[1] if self.best else None
        return Trained(folder, finished, self.update, self.seconds, self.tokens, best, lowest)


def _means(slots: list[float]) -> Entry:
    """The mean cross entropy of each kind of slot, of their sums and counts."""
    sums, counts = slots[: len(KINDS)], slots[len(KINDS) :]
    return {f"loss_{name}": s / n for name, s, n in zip(KINDS, sums, counts, strict=True) if n}


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
