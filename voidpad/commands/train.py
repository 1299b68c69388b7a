"""`voidpad train`, `voidpad data prepare` and `voidpad data stats`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from voidpad.commands.outputs import file_to_make, picture_to_write
from voidpad.files import beside

if TYPE_CHECKING:
    from voidpad.training.corpus import Stats

data = typer.Typer(help="Prepare training data and look at its lengths.", no_args_is_help=True)
out = Console(highlight=False, soft_wrap=True)


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name (`voidpad recipes` lists them) or a TOML file.")
    ],
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: part.field=value.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in run.output, if any.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option("--from", help="Go on from this checkpoint.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Save and stop after so many seconds; --resume goes on.")
    ] = None,
) -> None:
    """Train a model from a recipe."""
    from transformers.utils import logging

    from voidpad.commands.progress import watcher
    from voidpad.recipes import find_recipe
    from voidpad.training import recipe as recipes
    from voidpad.training import run as training

    settings = recipes.read(find_recipe(recipe, "train"), change or ())
    logging.disable_progress_bar()  # of every file it writes
    watch = watcher(settings.run.seconds)
    done = training.train(settings, resume=checkpoint or resume, max_seconds=max_seconds, callbacks=[watch])
    state = "finished" if done.finished else "paused (--resume goes on)"
    if os.environ.get("RANK", "0") == "0":
        out.print(
            f"{done.folder}: {state} after {done.steps} steps, {done.seconds:.1f} s, {done.tokens:,} tokens"
        )


@data.command()
def prepare(
    output: Annotated[
        Path, typer.Argument(help="The prepared file to write, .safetensors.", callback=file_to_make)
    ],
    source: Annotated[
        list[str],
        typer.Option(
            "--from", help="JSON lines or Parquet file, or a hub data set owner/name[:config[:split]]."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model whose tokenizer and chat template are used.")],
    max_length: Annotated[int, typer.Option(min=2, help="Cut examples to so many tokens.")] = 1024,
    drop_longer: Annotated[int, typer.Option(min=2, help="Drop examples with more tokens.")] = 4096,
    sample: Annotated[int, typer.Option(min=0, help="Keep so many examples; 0 keeps all.")] = 500_000,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 42,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
) -> None:
    """Turn conversations into one prepared file: two-message ones, without repeats, filtered and sampled."""
    from voidpad.training.corpus import Wanted
    from voidpad.training.corpus import prepare as build
    from voidpad.training.prepared import write

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are the parallelism
    wanted = Wanted(max_length, drop_longer, sample or None, seed, raw, skip_bad, processes)
    prepared, counts = build(source, model, wanted)
    write(output, prepared.pairs, prepared.roles, notes=prepared.notes)
    table = Table("examples", "count", title=str(output))
    for name, count in asdict(counts).items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    out.print(table)


@data.command()
def stats(
    file: Annotated[Path, typer.Argument(help="A prepared file.")],
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the lengths and F(m) to this picture.", callback=picture_to_write),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Lengths of a prepared file, and F(m): the share of responses of at most m tokens."""
    from voidpad.training.corpus import stats as measure
    from voidpad.training.prepared import read

    prepared = read(file)
    found = measure(prepared)
    if plot is not None:
        _draw(plot, prepared.pairs.prompt.tolist(), prepared.pairs.response.tolist())
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    _show(file, found)


def _show(file: Path, found: Stats) -> None:
    out.print(
        f"{file}: {found.examples:,} examples, {found.tokens:,} tokens, {found.truncated:,} responses cut"
    )
    table = Table("tokens", *found.prompt)
    for name in ("prompt", "response"):
        table.add_row(name, *(f"{value:.1f}" for value in getattr(found, name).values()))
    out.print(table)
    table = Table("m", *(str(m) for m in found.cdf))
    table.add_row("F(m)", *(f"{value:.3f}" for value in found.cdf.values()))
    out.print(table)


def _draw(path: Path, prompt: list[int], response: list[int]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist([prompt, response], bins=60, label=["prompt", "response"])
    left.set(xlabel="tokens", ylabel="examples")
    left.legend()
    ordered = sorted(response)
    right.step(ordered, [(k + 1) / len(ordered) for k in range(len(ordered))], where="post")
    right.set(xlabel="m", ylabel="F(m)", ylim=(0, 1))
    with beside(path) as draft:
        figure.savefig(draft)


def main() -> None:
    """Entry of `python -m voidpad.training.run`, and so of torchrun and `accelerate launch -m voidpad.training.run`."""
    from voidpad.commands.cli import guarded

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train)
    # debug: hours of work are not repeated to see where they failed
    guarded(lambda words: app(words, standalone_mode=False, prog_name="voidpad.training.run"), debug=True)
