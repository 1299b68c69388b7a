"""`voidpad train`, `voidpad data prepare` and `voidpad data stats`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from voidpad.commands.outputs import file_to_make, file_to_write, picture_to_write
from voidpad.errors import ConfigError
from voidpad.files import beside, refuse_own_source

if TYPE_CHECKING:
    from voidpad.training.corpus import Stats

data = typer.Typer(help="Prepare training data and look at its lengths.", no_args_is_help=True)
out = Console(highlight=False, soft_wrap=True)


class Turns(StrEnum):
    last = "last"
    every = "every"
    single = "single"


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
    from voidpad.training import recipe as recipes

    if init is not None:
        recipes.write_starter(init, model=model, data=file)
        out.print(f"{init}: written; its first lines say how to go on")
        return
    if recipe is None:
        raise ConfigError("RECIPE is missing; name a TOML file, or write one with --init my.toml.")
    from transformers.utils import logging

    from voidpad.commands.progress import banner, watcher
    from voidpad.recipes import find_recipe
    from voidpad.training import train as training
    from voidpad.training.checkpoint import latest

    changes = [*(change or ())]
    changes += [f"lora.r={lora_rank}"] if lora_rank else []
    changes += [f"lora.targets={json.dumps(_listed(lora_targets))}"] if lora_targets else []
    changes += [f"run.report_to={json.dumps(report_to)}"] if report_to else []
    settings = recipes.read(find_recipe(recipe, "train"), changes)
    logging.disable_progress_bar()  # transformers shows one for every file it writes
    first = os.environ.get("RANK", "0") == "0"
    if resume and checkpoint is None and latest(Path(settings.run.output)) is None and first:
        out.print(f"{settings.run.output}: holds no checkpoint yet, so the run begins at step 1")
    done = training.train(
        settings,
        resume=checkpoint or resume,
        max_seconds=max_seconds,
        callbacks=[watcher(settings.run.seconds)],
        announce=lambda facts: typer.echo(banner(facts)) if first else None,
    )
    if not first:
        return
    state = "finished" if done.finished else "paused (--resume continues)"
    out.print(
        f"{done.folder}: {state} after {done.steps} steps, {done.seconds:.1f} s, {done.tokens:,} tokens"
    )
    if done.best:
        out.print(f"lowest held-out loss {done.best_loss:.4f} in {done.best}")


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@data.command()
def prepare(
    output: Annotated[
        Path, typer.Argument(help="The prepared file to write, .safetensors.", callback=file_to_make)
    ],
    source: Annotated[
        list[str],
        typer.Option(
            "--from", help="JSON, JSON lines or Parquet file, or a hub data set owner/name[:config[:split]]."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model whose tokenizer and chat template are used.")],
    max_length: Annotated[int, typer.Option(min=2, help="Cut examples to so many tokens.")] = 1024,
    drop_longer: Annotated[
        int, typer.Option(min=2, help="Drop examples with more tokens, prompt and response together.")
    ] = 4096,
    sample: Annotated[int, typer.Option(min=0, help="Keep so many examples; 0 keeps all.")] = 500_000,
    seed: Annotated[int, typer.Option(help="Seed by which --sample draws.")] = 42,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    turns: Annotated[
        Turns,
        typer.Option(help="What to learn of a conversation; single takes only one question with one answer."),
    ] = Turns.last,
    fields: Annotated[
        str | None,
        typer.Option("--map", help="Names of the file's fields, such as prompt=question,response=answer."),
    ] = None,
) -> None:
    """Turn conversations into one prepared file, without repeats, filtered by length and sampled."""
    from voidpad.training.chats import REASONS, field_map
    from voidpad.training.corpus import CorpusRequest
    from voidpad.training.corpus import prepare as build
    from voidpad.training.prepared import write

    refuse_own_source(output, *source)
    if output.suffix != ".safetensors":
        raise ConfigError(
            f"{output}: a prepared file ends in .safetensors; name it {output.name}.safetensors."
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are the parallelism
    request = CorpusRequest(
        max_length,
        drop_longer,
        sample or None,
        seed,
        raw,
        skip_bad,
        processes,
        turns.value,
        field_map(fields),
    )
    prepared, counts = build(source, model, request)
    write(output, prepared.pairs, prepared.roles, notes=prepared.notes)
    table = Table("", "count", title=str(output))
    table.add_row("conversations read", f"{counts.conversations:,}")
    dropped = (counts.dropped_conversations, counts.dropped_examples)
    lines = [[(f"  dropped: {REASONS[name]}", n) for name, n in part.items() if n] for part in dropped]
    for label, count in (*lines[0], ("examples made of the others", counts.examples), *lines[1]):
        table.add_row(label, f"{count:,}")
    table.add_row("examples kept, whole", f"{counts.kept_whole:,}")
    table.add_row(f"examples kept, response cut at {max_length} tokens", f"{counts.kept_cut:,}")
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
    lengths = measure(prepared)
    if plot is not None:
        _draw(plot, prepared.pairs.prompt.tolist(), prepared.pairs.response.tolist())
    if as_json:
        typer.echo(json.dumps(asdict(lengths)))
        return
    _show(file, lengths)


def _show(file: Path, lengths: Stats) -> None:
    out.print(
        f"{file}: {lengths.examples:,} examples, {lengths.tokens:,} tokens, {lengths.truncated:,} responses cut"
    )
    table = Table("tokens", *lengths.prompt)
    for name in ("prompt", "response"):
        table.add_row(name, *(f"{value:.1f}" for value in getattr(lengths, name).values()))
    out.print(table)
    table = Table("m", *(str(m) for m in lengths.cdf))
    table.add_row("F(m)", *(f"{value:.3f}" for value in lengths.cdf.values()))
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
    """Entry of `python -m voidpad.commands.train`, which torchrun and `accelerate launch` call in every process."""
    from voidpad.commands.cli import guarded

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train)
    # debug: hours of work are not repeated to see where they failed
    guarded(lambda words: app(words, standalone_mode=False, prog_name="voidpad.commands.train"), debug=True)


if __name__ == "__main__":
    main()
