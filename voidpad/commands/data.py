"""`voidpad data prepare`, `voidpad data show` and `voidpad data stats`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from voidpad.commands.options import AsJson, Picture, Raw
from voidpad.commands.ui import out, print_json, table
from voidpad.errors import ConfigError, printable
from voidpad.files import refuse_own_source

data = typer.Typer(help="Prepare training data and look at it.", no_args_is_help=True)


PreparedFile = Annotated[Path, Argument(help="A prepared file.")]


@data.command()
def prepare(
    output: Path = Argument(..., help="The prepared file to write, .safetensors."),
    source: list[str] = Option(
        ..., "--from", help="JSON, JSON lines or Parquet file, or a hub data set owner/name[:config[:split]]."
    ),
    model: str = Option(..., help="Model whose tokenizer and chat template are used."),
    max_length: int = Option(1024, min=2, help="Cut examples to so many tokens."),
    drop_longer: int = Option(4096, min=2, help="Drop examples with more tokens."),
    sample: int = Option(500_000, min=0, help="Keep so many examples; 0 keeps all."),
    seed: int = Option(42, help="Seed by which --sample draws."),
    raw: Raw = False,
    skip_bad: bool = Option(False, "--skip-bad", help="Leave out chats that cannot be read."),
    processes: int = Option(1, min=1, help="Worker processes."),
    turns: Literal["last", "every", "single"] = Option(
        "last", help="What to learn of a conversation; single takes only one question with one answer."
    ),
    fields: str | None = Option(
        None, "--map", help="Names of the chats' fields, such as prompt=question,response=answer."
    ),
) -> None:
    """Turn conversations into one prepared file, without repeats, filtered by length and sampled."""
    from voidpad.training import corpus
    from voidpad.training.chats import REASONS, field_map
    from voidpad.training.prepared import write

    refuse_own_source(output, *source)
    if output.suffix != ".safetensors":
        raise ConfigError(
            f"{output}: a prepared file ends in .safetensors; name it {output.name}.safetensors."
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are the parallelism
    request = corpus.CorpusRequest(
        max_length=max_length,
        drop_longer=drop_longer,
        sample=sample or None,
        seed=seed,
        raw=raw,
        skip_bad=skip_bad,
        processes=processes,
        turns=turns,
        names=field_map(fields),
    )
    prepared, counts = corpus.prepare(source, model, request)
    write(output, prepared.pairs, prepared.roles, notes=prepared.notes)
    rows = [
        ("conversations read", counts.conversations),
        *((f"  dropped: {REASONS[reason]}", n) for reason, n in counts.dropped.items()),
        ("examples kept, whole", counts.kept_whole),
        (f"examples kept, response cut at {max_length} tokens", counts.kept_cut),
    ]
    out.print(table((str(output), "count"), [(label, f"{count:,}") for label, count in rows]))
    for reason, places in counts.places.items():
        out.print(f"{REASONS[reason]}: {', '.join(map(printable, places))}", markup=False)


@data.command()
def show(
    file: PreparedFile,
    count: int = Option(5, min=1, help="Show so many examples."),
    first: int = Option(1, min=1, help="Begin with this example; the first is 1."),
    model: str | None = Option(None, help="Model whose tokenizer spells the ids; default: the file's own."),
) -> None:
    """Print prepared examples as text: what is given, what is masked and learnt, and where an EOS follows."""
    from voidpad.models.checkpoint import vocabulary
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
    file: PreparedFile,
    plot: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Lengths of a prepared file, and F(m): the share of responses of at most m tokens."""
    from voidpad.training.prepared import read

    pairs = read(file).pairs
    found = pairs.statistics()
    if plot is not None:
        from voidpad.diagnose import plots

        plots.save(plots.lengths(pairs.prompt.tolist(), pairs.response.tolist()), plot)
    if as_json:
        print_json(found)
        return
    counts = (
        f"{found['examples']:,} examples, {found['tokens']:,} tokens, {found['truncated']:,} responses cut"
    )
    out.print(f"{file}: {counts}", markup=False)
    rows = [(name, *(f"{value:.1f}" for value in found[name].values())) for name in ("prompt", "response")]
    out.print(table(("tokens", *found["prompt"]), rows))
    shares = ("F(m)", *(f"{value:.3f}" for value in found["cdf"].values()))
    out.print(table(("m", *map(str, found["cdf"])), [shares]))
