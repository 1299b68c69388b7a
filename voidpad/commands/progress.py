"""How `voidpad train` shows a run: what it is going to do, then a progress bar on a terminal and lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from voidpad.training.watch import FOREVER

if TYPE_CHECKING:
    from voidpad.training.train import RunFacts

NAMES = {"loss": "loss", "loss_response": "response", "loss_eos": "eos", "loss_padding": "padding"}


def watcher(seconds: float | None) -> TrainerCallback:
    """The callback that shows progress. `seconds` is the run's budget if it ends by the clock."""
    return _ProgressBar(seconds) if sys.stderr.isatty() else _ProgressLines(seconds)


def banner(facts: RunFacts) -> str:
    """What a run is going to do, in a few lines."""
    share = facts.trainable / facts.parameters
    devices = f"{facts.processes} x {facts.device}" if facts.processes > 1 else facts.device
    length = "until its time is spent"
    if facts.updates < FOREVER:
        length = f"{facts.updates:,} steps ({facts.updates / facts.updates_per_epoch:.2f} epochs)"
    laid = "end to end" if facts.packed else "padded to the longest"
    again = f"{facts.checkpointed} of {facts.layers} layers checkpointed" if facts.checkpointed else ""
    work = [f"{facts.passes} a step, at most {facts.pass_tokens:,} tokens each, rows {laid}"]
    work += [again or "no checkpointing", "compiled" if facts.compiled else "not compiled"]
    held_out = f", {facts.held_out:,} held out" if facts.held_out else ""
    return "\n".join(
        [
            f"device      {devices}, {facts.precision}",
            f"parameters  {facts.parameters:,}, of which {facts.trainable:,} train ({share:.2%})",
            f"data        {facts.examples:,} examples{held_out}, {facts.updates_per_epoch:,} steps per epoch",
            f"length      {length}",
            f"passes      {'; '.join(work)}",
            f"memory      about {_amount(facts.memory)} on each device, by estimate",
        ]
    )


def _amount(size: float) -> str:
    """Bytes for a reader."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _duration(seconds: float) -> str:
    """Seconds for a reader: the two largest units."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def _losses(logs: dict[str, Any]) -> str:
    """The numbers of one log entry, of training or of the held-out examples."""
    if "eval_loss" in logs:
        parts = [
            f"{label} {logs[f'eval_{name}']:.4f}" for name, label in NAMES.items() if f"eval_{name}" in logs
        ]
        return "held-out " + "  ".join(parts)
    parts = [f"{label} {logs[name]:.4f}" for name, label in NAMES.items() if name in logs]
    parts += [f"lr {logs['learning_rate']:.3g}", f"norm {logs['grad_norm']:.3g}"]
    if "tokens_per_second" in logs:
        parts.append(f"{logs['tokens_per_second']:,} tokens/s")
    return "  ".join(parts)


class _ProgressLines(TrainerCallback):
    """One line per log entry, for files and remote terminals: step, total, losses, time spent and time left."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.first: tuple[int, float] | None = None  # step and time at which this process began to measure

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first = self.first or (
            state.global_step,
            time.monotonic(),
        )  # the first step compiles and warms up

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or not {"loss", "eval_loss"} & logs.keys():
            return
        total = f"/{state.max_steps}" if state.max_steps < FOREVER else ""
        line = f"step {state.global_step}{total}  {_losses(logs)}"
        if "seconds" in logs:
            line += f"  {logs['seconds']:.1f} s"
            left = self._left(state, logs["seconds"])
            line += f", {_duration(left)} left" if left is not None else ""
        typer.echo(line)

    def _left(self, state: Any, seconds: float) -> float | None:
        if state.max_steps >= FOREVER:
            return max(0.0, (self.seconds or 0.0) - seconds)
        if self.first is None or state.global_step <= self.first[0]:
            return None
        step, began = self.first
        pace = (time.monotonic() - began) / (state.global_step - step)
        return float(pace * (state.max_steps - state.global_step))


class _ProgressBar(TrainerCallback):
    """A bar with the share done, the time left and the newest losses."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        columns = (
            TextColumn("step {task.fields[step]}"),
            BarColumn(20),
            TextColumn("{task.percentage:.0f} %"),
        )
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.bar = Progress(*columns, *times, TextColumn("{task.fields[text]}"), console=Console(stderr=True))
        self.text = {"loss": "", "held-out": ""}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        total = self.seconds if state.max_steps >= FOREVER else state.max_steps
        self.total = "" if state.max_steps >= FOREVER else f"/{state.max_steps}"
        self.task = self.bar.add_task("", total=total, step=f"{state.global_step}{self.total}", text="")
        if state.is_world_process_zero:
            self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.max_steps < FOREVER:
            self.bar.update(self.task, completed=state.global_step, step=f"{state.global_step}{self.total}")

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not logs or not {"loss", "eval_loss"} & logs.keys():
            return
        if "eval_loss" in logs:
            self.text["held-out"] = f"  held-out {logs['eval_loss']:.3f}"
        else:
            rate = f"  {logs['tokens_per_second'] / 1e6:.2f}M/s" if "tokens_per_second" in logs else ""
            self.text["loss"] = f"loss {logs['loss']:.3f}{rate}"
            done = logs["seconds"] if state.max_steps >= FOREVER else state.global_step
            self.bar.update(self.task, completed=done, step=f"{state.global_step}{self.total}")
        self.bar.update(self.task, text="".join(self.text.values()))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.bar.stop()
