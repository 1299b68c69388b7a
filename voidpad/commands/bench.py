"""`voidpad bench`: the speed of exact and approximate decoding on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from typer import Option

from voidpad.commands.options import AsJson, ModelOptions, grouped
from voidpad.commands.prompts import builtin_prompts, gather
from voidpad.commands.ui import bar, note, out, table


@grouped
def bench(
    source: ModelOptions,
    file: Path | None = Option(None, help="prompts: text or JSON lines"),
    prompts: int = Option(32, help="for built-in models without --file", min=1),
    canvas: int = Option(256, min=1, help="fixed canvas"),
    block: int = Option(16, min=1, help="block size"),
    rounds: int = Option(1, help="turns in which all decoders share the prompts", min=1),
    merged: bool = Option(False, help="merge the adapter first, for all decoders"),
    threads: int | None = Option(None, help="CPU threads", min=1),
    compile_layers: bool = Option(False, "--compile", help="ours with compiled layers"),
    as_json: AsJson = False,
) -> None:
    """Time exact and approximate decoding of the same prompts; everything in one run."""
    import torch

    from voidpad.experiments.bench import compare, decoders
    from voidpad.models import merge
    from voidpad.models.locate import BUILT_IN

    if threads is not None:
        torch.set_num_threads(threads)
    own = file is None and source.model in BUILT_IN
    texts = builtin_prompts(prompts) if own else gather(file=file)
    model = source.load()
    if merged:
        model = merge(model)
    ids = [model.encode(text) for text in texts]
    if compile_layers:
        model.compiled()
    named = decoders(model, canvas, block)
    warm = 2 if compile_layers else 0  # prompts that are answered first, untimed, while the layers compile
    with bar(rounds * len(named), label="timing") as tick:
        found = compare(named, ids, device=model.device, rounds=rounds, warm=warm, tick=tick)
    if as_json:
        print(json.dumps(found))
        return
    rows = [
        (
            name,
            f"{row['seconds']:.2f}",
            f"{row['ratio']:.2f}x",
            f"{row['passes']:.0f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['equal']:.0f}/{len(ids)}",
        )
        for name, row in found.items()
    ]
    out.print(table(("decoder", "seconds", "faster", "passes", "tokens/s", "answers equal"), rows))
    note(
        f"{len(ids)} prompts, canvas {canvas}, block {block}, {torch.get_num_threads()} threads, {model.device}; "
        "faster and equal: against exact decoding"
    )
