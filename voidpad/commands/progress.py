"""How a training run is shown: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from voidpad.training.watch import FOREVER

NAMES = {"loss": "loss", "loss_response": "response", "loss_eos": "eos", "loss_padding": "padding"}


def watcher(seconds: float | None) -> TrainerCallback:
    """A bar where somebody is watching. `seconds` is the run's budget if it ends by the clock."""
    return ProgressBar(seconds) if sys.stderr.isatty() else ProgressLines()


def summary(logs: dict[str, Any]) -> str:
    parts = [f"{label} {logs[name]:.4f}" for name, label in NAMES.items() if name in logs]
    parts += [f"lr {logs['learning_rate']:.3g}", f"norm {logs['grad_norm']:.3g}"]
    if "tokens_per_second" in logs:
        parts.append(f"{logs['tokens_per_second'] / 1e6:.3f}M tokens/s")
    return "  ".join(parts)


def brief(logs: dict[str, Any]) -> str:
    rate = f"  {logs['tokens_per_second'] / 1e6:.2f}M/s" if "tokens_per_second" in logs else ""
    return f"loss {logs['loss']:.3f}{rate}"


class ProgressLines(TrainerCallback):
    """One line per log: what a file or a remote terminal wants."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            typer.echo(f"step {state.global_step}  {summary(logs)}  {logs['seconds']:.1f} s")


class ProgressBar(TrainerCallback):
    """Progress and time left, with the newest losses beside."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        columns = (
            TextColumn("step {task.fields[step]}"),
            BarColumn(20),
            TextColumn("{task.percentage:.0f} %"),
        )
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.bar = Progress(*columns, *times, TextColumn("{task.fields[text]}"), console=Console(stderr=True))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        total = self.seconds if state.max_steps >= FOREVER else state.max_steps
        self.task = self.bar.add_task("", total=total, step=state.global_step, text="")
        if state.is_world_process_zero:
            self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.max_steps < FOREVER:
            self.bar.update(self.task, completed=state.global_step, step=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return
        done = logs["seconds"] if state.max_steps >= FOREVER else state.global_step
        self.bar.update(self.task, completed=done, step=state.global_step, text=brief(logs))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.bar.stop()
