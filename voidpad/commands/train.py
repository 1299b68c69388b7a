"""`voidpad train` and `voidpad data`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers import TrainerCallback

from voidpad.errors import ConfigError, VoidpadError


class Lines(TrainerCallback):
    """One line per log: what a file or a remote terminal wants."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        names = {"loss": "loss", "loss_response": "response", "loss_eos": "eos", "loss_padding": "padding"}
        parts = [f"{label} {logs[name]:.4f}" for name, label in names.items() if name in logs]
        rate = f"{logs['tokens_per_second'] / 1e6:.3f}M tokens/s" if "tokens_per_second" in logs else ""
        tail = [
            f"lr {logs['learning_rate']:.3g}",
            f"norm {logs['grad_norm']:.3g}",
            f"{logs['seconds']:.1f} s",
            rate,
        ]
        typer.echo("  ".join([f"step {state.global_step}", *parts, *filter(None, tail)]))


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a TOML file.")],
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: part.field=value.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in run.output.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option("--from", help="Go on from this checkpoint.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Save and stop after so many seconds; --resume goes on.")
    ] = None,
) -> None:
    """Train a model from a recipe."""
    from voidpad import train as training
    from voidpad.training import config

    settings = config.read(recipe, change or ())
    done = training.train(settings, resume=checkpoint or resume, max_seconds=max_seconds, callbacks=[Lines()])
    state = "finished" if done.finished else "paused; --resume goes on"
    typer.echo(
        f"{done.folder}: {state} after {done.steps} steps, {done.seconds:.1f} s, {done.tokens:,} tokens"
    )


def main() -> None:
    """Entry of `python -m voidpad.train` and of `accelerate launch -m voidpad.train`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train)
    try:
        app()
    except ConfigError as error:
        sys.exit(_complain(error, 2))
    except VoidpadError as error:
        sys.exit(_complain(error, 1))


def _complain(error: Exception, status: int) -> int:
    typer.echo(f"error: {error}", err=True)
    return status
