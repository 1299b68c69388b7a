"""`voidpad train`: run a recipe and show how it goes, or write a recipe to start from."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from voidpad.commands.process import quick_interrupt
from voidpad.commands.ui import counting, err, out
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from voidpad.training.train import Entry, Run

LOSSES = {"loss": "loss", "loss_response": "response", "loss_eos": "eos", "loss_padding": "padding"}


def train(
    recipe: str | None = Argument(
        None,
        help="A recipe's name (`voidpad recipes` lists them) or a TOML file; --init writes one to start from.",
    ),
    change: list[str] | None = Option(None, "--set", help="Change a setting: part.field=value."),
    resume: bool = Option(False, "--resume", help="Continue from the last checkpoint in run.output, if any."),
    max_seconds: float | None = Option(
        None, help="Save and stop after so many seconds; --resume continues.", min=0.001
    ),
    init: Path | None = Option(None, help="Write a starter recipe to this file and stop."),
    model: str = Option("tiny-instruct", help="With --init: the model to fine-tune."),
    file: str | None = Option(None, "--data", help="With --init: the prepared file."),
) -> None:
    """Train a model from a recipe."""
    with quick_interrupt():
        from voidpad.recipes import find_recipe
        from voidpad.training import recipe as recipes

    if init is not None:
        recipes.write_starter(init, model=model, data=file)
        out.print(f"{init}: written; its first lines say how to go on")
        return
    if recipe is None:
        raise ConfigError("RECIPE is missing; name a TOML file, or write one with --init my.toml.")
    settings = recipes.read(find_recipe(recipe, "train"), change or [])

    with quick_interrupt():
        from transformers.utils import logging

        from voidpad.training import train as training
        from voidpad.training.checkpoint import latest

    logging.disable_progress_bar()  # transformers shows one for every file it writes
    first = os.environ.get("RANK", "0") == "0"
    if resume and latest(Path(settings.run.output)) is None and first:
        out.print(f"{settings.run.output}: holds no checkpoint yet, so the run begins at step 1")
    with counting(shown=first and err.is_terminal) as bar:
        watch = Display(bar) if first else (lambda run, entries: None)
        done = training.train(settings, resume=resume, max_seconds=max_seconds or math.inf, watch=watch)
    if not first:
        return
    state = "finished" if done.finished else "paused (--resume continues)"
    out.print(
        f"{done.folder}: {state} after {done.steps} steps, {done.seconds:.1f} s, {done.tokens:,} tokens"
    )
    if done.best:
        out.print(f"lowest held-out loss {done.best_loss:.4f} in {done.best}")


class Display:
    """Shows a run: first what it is going to do, then a line for each log entry, and a progress bar on a terminal."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task: TaskID | None = None

    def __call__(self, run: Run, entries: list[Entry]) -> None:
        if self.task is None:
            out.print(_banner(run), markup=False)
            self.task = self.bar.add_task("training", total=run.total or run.recipe.run.seconds)
        for entry in entries:
            out.print(_line(run, entry), markup=False)
        self.bar.update(self.task, completed=run.update if run.total else run.seconds)


def _line(run: Run, entry: Entry) -> str:
    """A log entry, with the time to the end at the pace so far."""
    prefix = "" if "loss" in entry else "eval_"
    losses = [
        f"{label} {entry[prefix + name]:.4f}" for name, label in LOSSES.items() if prefix + name in entry
    ]
    step = f"step {run.update}/{run.total}" if run.total else f"step {run.update}"
    if prefix:
        return "  ".join([step, f"held-out {losses[0]}", *losses[1:]])
    rates = [f"lr {entry['learning_rate']:.3g}", f"norm {entry['grad_norm']:.3g}"]
    if "tokens_per_second" in entry:
        rates.append(f"{entry['tokens_per_second']:,} tokens/s")
    if run.total:
        left = entry["seconds"] / max(run.update - 1, 1) * (run.total - run.update)
    else:
        left = max(0.0, (run.recipe.run.seconds or 0.0) - entry["seconds"])
    spent = f"{entry['seconds']:.1f} s"  # of the updates after the first, which also warms up
    if run.update > 1:
        spent += f", {timedelta(seconds=round(left))} left"
    return "  ".join([step, *losses, *rates, spent])


def _banner(run: Run) -> str:
    """What a run is going to do, in a few lines."""
    import torch

    device = run.device.type if run.device.type == "cpu" else torch.cuda.get_device_name(run.device)
    processes = f"{run.processes} x " if run.processes > 1 else ""
    kinds = {str(p.dtype).removeprefix("torch.") for p in run.model.net.parameters() if p.is_floating_point()}
    weights = " and ".join(filter(None, [*sorted(kinds), run.recipe.model.quantize]))
    computed = ", computed in bfloat16" if run.bfloat16 else ""
    trainable = sum(p.numel() for p in run.parameters)
    held_out = f", {run.held_out.rows.count:,} held out" if run.held_out else ""
    epochs = f"{run.total:,} steps ({run.total / run.per_epoch:.2f} epochs)" if run.total else ""
    limit, passes = run.passes.limit, len(run.passes.planned(0))
    rows = "end to end" if limit.end_to_end else "padded to the longest"
    how = [f"{passes} a step, at most {limit.tokens:,} tokens each, rows {rows}"]
    how += ["layers checkpointed"] * run.recomputing + ["compiled"] * run.compiled
    return (
        f"device      {processes}{device}, {weights} weights{computed}\n"
        f"parameters  {run.model.parameters:,}, of which {trainable:,} train "
        f"({trainable / run.model.parameters:.2%})\n"
        f"data        {run.passes.rows.count:,} examples{held_out}, {run.per_epoch:,} steps per epoch\n"
        f"length      {epochs or 'until its time is spent'}\n"
        f"passes      {'; '.join(how)}"
    )


def main() -> None:
    """Entry of `python -m voidpad.commands.train`, which torchrun and `accelerate launch` call in every process."""
    from voidpad.commands.cli import guarded

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train)
    # debug: hours of work are not repeated to see where they failed
    guarded(lambda words: app(words, standalone_mode=False, prog_name="voidpad.commands.train"), debug=True)


if __name__ == "__main__":
    main()
