"""`voidpad train`: run a recipe and show how it goes, or write a recipe to start from."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from voidpad.commands.process import quick_interrupt
from voidpad.commands.ui import file_to_write, out
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.training.train import Entry, Run


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe's name (`voidpad recipes` lists them) or a TOML file; --init writes one to start from."
        ),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: part.field=value.")
    ] = None,
    lora_rank: Annotated[int | None, typer.Option(min=1, help="Same as --set lora.r=...")] = None,
    lora_targets: Annotated[
        str | None, typer.Option(help="Modules that get LoRA, such as q_proj,v_proj; see lora.targets.")
    ] = None,
    report_to: Annotated[
        list[str] | None,
        typer.Option(help="Log to this service (repeatable): wandb, tensorboard, mlflow."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint in run.output, if any.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option("--from", help="Continue from this checkpoint.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Save and stop after so many seconds; --resume continues.", min=0.001)
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="Write a starter recipe to this file and stop.", callback=file_to_write),
    ] = None,
    model: Annotated[str, typer.Option(help="With --init: the model to fine-tune.")] = "tiny-instruct",
    file: Annotated[
        str | None, typer.Option("--data", help="With --init: the prepared file; default: beside the recipe.")
    ] = None,
) -> None:
    """Train a model from a recipe."""
    with quick_interrupt():
        from voidpad.training import recipe as recipes

    if init is not None:
        recipes.write_starter(init, model=model, data=file)
        out.print(f"{init}: written; its first lines say how to go on")
        return
    if recipe is None:
        raise ConfigError("RECIPE is missing; name a TOML file, or write one with --init my.toml.")
    from voidpad.recipes import find_recipe

    changes = [*(change or ())]
    changes += [f"lora.r={lora_rank}"] if lora_rank else []
    if lora_targets:
        targets = [name.strip() for name in lora_targets.split(",") if name.strip()]
        changes.append(f"lora.targets={json.dumps(targets)}")
    changes += [f"run.report_to={json.dumps(report_to)}"] if report_to else []
    settings = recipes.read(find_recipe(recipe, "train"), changes)

    with quick_interrupt():
        from transformers.utils import logging

        from voidpad.training import train as training
        from voidpad.training.checkpoint import latest

    logging.disable_progress_bar()  # transformers shows one for every file it writes
    first = os.environ.get("RANK", "0") == "0"
    if resume and checkpoint is None and latest(Path(settings.run.output)) is None and first:
        out.print(f"{settings.run.output}: holds no checkpoint yet, so the run begins at step 1")
    display = _Display() if first else None
    try:
        done = training.train(
            settings,
            resume=checkpoint or resume,
            max_seconds=max_seconds,
            watch=display or (lambda run, entries: None),
        )
    finally:
        if display and display.bar:
            display.bar.stop()
    if not first:
        return
    state = "finished" if done.finished else "paused (--resume continues)"
    out.print(
        f"{done.folder}: {state} after {done.steps} steps, {done.seconds:.1f} s, {done.tokens:,} tokens"
    )
    if done.best:
        out.print(f"lowest held-out loss {done.best_loss:.4f} in {done.best}")


class _Display:
    """Shows a run: first what it is going to do, then a progress bar on a terminal, or a line for each log entry."""

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self.first: tuple[int, float] | None = None  # update and time from which on the pace is measured
        self.texts = {"loss": "", "eval_loss": ""}

    def __call__(self, run: Run, entries: list[Entry]) -> None:
        if self.first is None:
            typer.echo(_banner(run))
            self.first = (run.update, time.monotonic())
            if sys.stderr.isatty():
                self._show_bar(run)
            return
        for entry in entries:
            if self.bar is None:
                typer.echo(self._line(run, entry))
            elif "eval_loss" in entry:
                self.texts["eval_loss"] = f"  held-out {entry['eval_loss']:.3f}"
            else:
                self.texts["loss"] = f"loss {entry['loss']:.3f}"
        if self.bar is not None:
            done = run.update if run.total else run.seconds
            self.bar.update(self.task, completed=done, step=_step(run), text="".join(self.texts.values()))

    def _show_bar(self, run: Run) -> None:
        shown = TextColumn("step {task.fields[step]}"), BarColumn(20), TextColumn("{task.percentage:.0f} %")
        times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
        self.bar = Progress(*shown, *times, TextColumn("{task.fields[text]}"), console=Console(stderr=True))
        self.task = self.bar.add_task("", total=run.total or run.recipe.run.seconds, step=_step(run), text="")
        self.bar.start()

    def _line(self, run: Run, entry: Entry) -> str:
        kinds = {"loss": "loss", "loss_response": "response", "loss_eos": "eos", "loss_padding": "padding"}
        prefix, what = ("eval_", "held-out ") if "eval_loss" in entry else ("", "")
        found = {label: entry[prefix + name] for name, label in kinds.items() if prefix + name in entry}
        line = f"step {_step(run)}  {what}" + "  ".join(
            f"{label} {loss:.4f}" for label, loss in found.items()
        )
        if what:
            return line
        line += f"  lr {entry['learning_rate']:.3g}  norm {entry['grad_norm']:.3g}"
        if "tokens_per_second" in entry:
            line += f"  {entry['tokens_per_second']:,} tokens/s"
        return f"{line}  {entry['seconds']:.1f} s, {_duration(self._left(run))} left"

    def _left(self, run: Run) -> float:
        """Seconds to the end, at the pace so far."""
        if not run.total:
            return max(0.0, (run.recipe.run.seconds or 0.0) - run.seconds)
        assert self.first is not None
        update, began = self.first
        return (time.monotonic() - began) / (run.update - update) * (run.total - run.update)


def _step(run: Run) -> str:
    return f"{run.update}/{run.total}" if run.total else str(run.update)


def _banner(run: Run) -> str:
    """What a run is going to do, in a few lines."""
    import torch

    net, limit, planned = run.model.net, run.passes.limit, run.passes.planned(0)
    trainable = sum(p.numel() for p in run.parameters)
    device = run.device.type if run.device.type == "cpu" else torch.cuda.get_device_name(run.device)
    if run.processes > 1:
        device = f"{run.processes} x {device}"
    kinds = {str(p.dtype).removeprefix("torch.") for p in net.parameters() if p.is_floating_point()}
    kinds |= {run.recipe.model.quantize} if run.recipe.model.quantize else set()
    precision = f"{' and '.join(sorted(kinds))} weights" + (", computed in bfloat16" if run.half else "")
    held_out = f", {run.held_out.rows.count:,} held out" if run.held_out else ""
    length = "until its time is spent"
    if run.total:
        length = f"{run.total:,} steps ({run.total / run.per_epoch:.2f} epochs)"
    rows = "end to end" if limit.packed else "padded to the longest"
    work = [f"{len(planned)} a step, at most {limit.tokens:,} tokens each, rows {rows}"]
    work += ["layers checkpointed" if run.checkpointed else "no checkpointing"]
    work += ["compiled" if run.compiled else "not compiled"]
    return "\n".join(
        [
            f"device      {device}, {precision}",
            f"parameters  {run.model.parameters:,}, of which {trainable:,} train "
            f"({trainable / run.model.parameters:.2%})",
            f"data        {run.passes.rows.count:,} examples{held_out}, {run.per_epoch:,} steps per epoch",
            f"length      {length}",
            f"passes      {'; '.join(work)}",
        ]
    )


def _duration(seconds: float) -> str:
    """Seconds for a reader: the two largest units."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def main() -> None:
    """Entry of `python -m voidpad.commands.train`, which torchrun and `accelerate launch` call in every process."""
    from voidpad.commands.cli import guarded

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train)
    # debug: hours of work are not repeated to see where they failed
    guarded(lambda words: app(words, standalone_mode=False, prog_name="voidpad.commands.train"), debug=True)


if __name__ == "__main__":
    main()
