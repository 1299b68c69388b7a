"""`voidpad calibrate` and `voidpad bench`: a checkpoint measured on prompts, for its thresholds and for its speed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from random import Random

from typer import Option

from voidpad.commands.options import AsJson, ModelOptions, RowLimit, grouped
from voidpad.commands.prompts import builtin_prompts, gather
from voidpad.commands.ui import bar, note, print_json, print_records
from voidpad.errors import ConfigError


@grouped
def calibrate(
    source: ModelOptions,
    file: Path | None = Option(None, help="prompts: text or JSON lines; - is standard input"),
    data: Path | None = Option(
        None, help="prompts of training data: JSON lines of chats, or a prepared file"
    ),
    prompts: int = Option(64, min=1, help="drawn from --data, or made for a built-in model without --file"),
    canvas: int = Option(64, help="where the canvas starts"),
    limit: int | None = Option(None, help="longest canvas; 512 if the context leaves so much"),
    block: int = Option(32, help="block size, and the step of the canvas"),
    fit: float = Option(0.98, min=0.0, max=1.0, help="share of answers that must fit the chosen canvas"),
    rows: RowLimit = 64,
    save: Path | None = Option(
        None, help="folder whose voidpad.json gets the values", exists=True, file_okay=False
    ),
) -> None:
    """Choose VoidExpansion's thresholds and window: fewest token-passes at which the answers still fit."""
    from voidpad.diagnose.questions import file_pairs
    from voidpad.experiments.calibrate import Search, choose, fields, frontier, settings, survey
    from voidpad.models import read_card
    from voidpad.models.locate import BUILT_IN, locate

    Search(start=canvas, limit=limit or canvas, block=block, fit=fit)  # refused before anything is loaded
    name = source.adapter or source.model
    if save is not None and save.resolve() not in {locate(part).resolve() for part in (source.model, name)}:
        raise ConfigError(f"--save {save}: is another checkpoint than the one that is calibrated, {name}.")
    opened = source.open()
    if opened.card.padding not in (None, "void"):
        raise ConfigError(
            f"{name}: was trained with {opened.card.padding} padding, so its VOID means nothing; calibrate a "
            "VOID-trained checkpoint."
        )
    if data is not None:
        origin, pairs = str(data), file_pairs(opened, data)
        distinct = dict.fromkeys(tuple(pairs.spans(row)[0][1]) for row in range(len(pairs)))
        short = [list(prompt) for prompt in distinct if len(prompt) + (limit or canvas) <= opened.context]
        ids = Random(7).sample(short, min(prompts, len(short)))
    else:
        made = file is None and source.model in BUILT_IN
        origin = "of the built-in model's tasks" if made else str(file or "standard input")
        ids = [opened.encode(text) for text in (builtin_prompts(prompts) if made else gather(file=file))]
    if limit is None:
        space = opened.context - max(map(len, ids), default=0)
        limit = min(512, max(canvas, canvas + (space - canvas) // block * block))
    search = Search(start=canvas, limit=limit, block=block, fit=fit)
    model = source.load(opened)
    with bar(2 + (limit - canvas) // block, label="probing") as tick:
        tried = settings(survey(model, ids, search, rows=rows, tick=tick), search)
    chosen, best = choose(tried, fit), frontier(tried)
    print_records(
        [
            {
                "": "chosen" if one == chosen else "",
                **asdict(one),
                "fit": f"{one.fit:.1%}",
                "cost": f"{one.cost:.1%}",
            }
            for one in (best if chosen in best else [*best, chosen])
        ]
    )
    measured = " with adapter ".join(filter(None, (source.model, source.adapter)))
    note(
        f"{measured}: {len(ids)} prompts ({origin}); fit: answers that fit; cost: token-passes of a fixed canvas of "
        f"{limit}"
    )
    if save is not None:
        card = read_card(save) or model.card
        replace(card, calibration={**card.calibration, "void-expansion": fields(chosen, search)}).write(save)
        note(f"wrote {save / 'voidpad.json'}")


@grouped
def bench(
    source: ModelOptions,
    file: Path | None = Option(None, help="prompts: text or JSON lines"),
    prompts: int = Option(32, help="for built-in models without --file", min=1),
    canvas: int = Option(256, min=1, help="fixed canvas"),
    block: int = Option(16, min=1, help="block size"),
    rounds: int = Option(1, help="turns in which all decoders share the prompts", min=1),
    compile_layers: bool = Option(False, "--compile", help="with compiled layers"),
    as_json: AsJson = False,
) -> None:
    """Time exact and approximate decoding of the same prompts; everything in one run."""
    import torch

    from voidpad.experiments.bench import compare, decoders
    from voidpad.models.locate import BUILT_IN

    texts = builtin_prompts(prompts) if file is None and source.model in BUILT_IN else gather(file=file)
    model = source.load()
    ids = [model.encode(text) for text in texts]
    if compile_layers:
        model.compiled()
    named = decoders(model, canvas, block)
    warm = 2 if compile_layers else 0  # prompts that are answered first, untimed, while the layers compile
    with bar(rounds * len(named), label="timing") as tick:
        found = compare(named, ids, device=model.device, rounds=rounds, warm=warm, tick=tick)
    if as_json:
        print_json(found)
        return
    print_records([{"decoder": name, **row} for name, row in found.items()])
    note(
        f"{len(ids)} prompts, canvas {canvas}, block {block}, {torch.get_num_threads()} threads, {model.device}; "
        "ratio (of seconds) and equal (answers): against exact decoding"
    )
