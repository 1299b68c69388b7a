"""`voidpad data prepare`, `voidpad data show` and `voidpad data stats`."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from voidpad.commands.ui import file_to_write, out, picture_to_write
from voidpad.errors import ConfigError, printable
from voidpad.files import atomic_file, refuse_own_source

data = typer.Typer(help="Prepare training data and look at it.", no_args_is_help=True)


class Turns(StrEnum):
    last = "last"
    every = "every"
    single = "single"


@data.command()
def prepare(
    output: Annotated[
        Path, typer.Argument(help="The prepared file to write, .safetensors.", callback=file_to_write)
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
    chats, examples = (
        [(f"  dropped: {REASONS[name]}", n) for name, n in part.items() if n] for part in dropped
    )
    for label, count in (*chats, ("examples made of the others", counts.examples), *examples):
        table.add_row(label, f"{count:,}")
    table.add_row("examples kept, whole", f"{counts.kept_whole:,}")
    table.add_row(f"examples kept, response cut at {max_length} tokens", f"{counts.kept_cut:,}")
    if counts.unknown:
        table.add_row(f"  of all, with {REASONS['unknown']}", f"{counts.unknown:,}")
    out.print(table)
    for reason, places in counts.places.items():
        if reason != "not_sampled":
            out.print(f"{REASONS[reason]}: {', '.join(map(printable, places))}")


@data.command()
def show(
    file: Annotated[Path, typer.Argument(help="A prepared file.")],
    count: Annotated[int, typer.Option(min=1, help="Show so many examples.")] = 5,
    first: Annotated[int, typer.Option(min=1, help="Begin with this example; the first is 1.")] = 1,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer spells the ids; default: the file's own.")
    ] = None,
) -> None:
    """Print prepared examples as text: what is given, what is masked and learnt, and where an EOS follows."""
    from voidpad.models.load import vocabulary
    from voidpad.training.prepared import read

    prepared = read(file)
    name = model or prepared.notes.get("tokenizer")
    if name is None:
        raise ConfigError(f"{file}: does not say which tokenizer made it; name a model with --model.")
    if first > len(prepared.pairs):
        raise ConfigError(f"--first: {first}, but {file} holds {len(prepared.pairs)} examples.")
    tokenizer, roles = vocabulary(str(name))
    if (roles.mask, roles.eos) != (prepared.roles.mask, prepared.roles.eos):
        raise ConfigError(f"--model: {name} has other token ids than those that {file} was prepared for.")
    for number in range(first, min(first + count, len(prepared.pairs) + 1)):
        spans = prepared.pairs.spans(number - 1)
        learnt = sum(len(ids) for kind, ids in spans if kind == "answer")
        out.print(f"example {number}: {len(spans[0][1])} tokens of prompt, {learnt} of answer")
        for kind, ids in spans:
            label, style = ("given", "dim") if kind in ("prompt", "fixed") else ("learnt", None)
            text = "EOS, then padding" if kind == "end" else str(tokenizer.decode(ids))
            for line in text.split("\n"):
                out.print(printable(f"  {label:<6} | {line}"), style=style, markup=False)


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
        typer.echo(json.dumps(lengths))
        return
    _show(file, lengths)


def _show(file: Path, lengths: dict[str, Any]) -> None:
    counts = f"{lengths['examples']:,} examples, {lengths['tokens']:,} tokens, {lengths['truncated']:,} responses cut"
    out.print(f"{file}: {counts}")
    table = Table("tokens", *lengths["prompt"])
    for name in ("prompt", "response"):
        table.add_row(name, *(f"{value:.1f}" for value in lengths[name].values()))
    out.print(table)
    table = Table("m", *(str(m) for m in lengths["cdf"]))
    table.add_row("F(m)", *(f"{value:.3f}" for value in lengths["cdf"].values()))
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
    with atomic_file(path) as draft:
        figure.savefig(draft)
