"""`voidpad bench`: the speed of exact and approximate decoding on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from voidpad.commands.loading import Device, load_model
from voidpad.commands.prompts import gather
from voidpad.commands.ui import bar, err, out
from voidpad.errors import ConfigError


def bench(
    model: Annotated[str, typer.Option(help="built-in name, hub id or folder")] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter")] = None,
    file: Annotated[Path | None, typer.Option(help="prompts: text or JSON lines")] = None,
    prompts: Annotated[int, typer.Option(help="for built-in models without --file", min=1)] = 32,
    canvas: Annotated[int, typer.Option(min=1, help="fixed canvas")] = 256,
    block: Annotated[int, typer.Option(min=1, help="block size")] = 16,
    rounds: Annotated[int, typer.Option(help="turns in which all decoders share the prompts", min=1)] = 1,
    merged: Annotated[bool, typer.Option(help="merge the adapter first, for all decoders")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads", min=1)] = None,
    device: Device = "auto",
    compile_layers: Annotated[bool, typer.Option("--compile", help="ours with compiled layers")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON")] = False,
) -> None:
    """Time exact and approximate decoding of the same prompts; everything in one run."""
    import torch

    from voidpad.commands.calibrate import own_prompts
    from voidpad.experiments.bench import compare, decoders
    from voidpad.models import merge
    from voidpad.models.locate import BUILT_IN

    if threads is not None:
        torch.set_num_threads(threads)
    if file is None and model not in BUILT_IN:
        raise ConfigError(
            f"{model}: is no built-in model, so it brings no problems; give prompts with --file."
        )
    texts: Any = gather([], file=file, messages=None) if file else own_prompts(prompts)
    loaded = load_model(model, adapter, device=device)
    if merged:
        loaded = merge(loaded)
    ids = [loaded.encode(text) for text in texts]
    if compile_layers:
        loaded.compiled()
    named = decoders(loaded, canvas, block)
    warm = 2 if compile_layers else 0  # prompts that are answered first, untimed, while the layers compile
    with bar(rounds * len(named), shown=True, label="timing") as tick:
        found = compare(named, ids, device=loaded.device, rounds=rounds, warm=warm, tick=tick)
    if as_json:
        print(json.dumps(found))
        return
    table = Table("decoder", "seconds", "faster", "passes", "tokens/s", "answers equal", box=None)
    for name, row in found.items():
        cells = (
            f"{row['seconds']:.2f}",
            f"{row['ratio']:.2f}x",
            f"{row['passes']:.0f}",
            f"{row['tokens_per_s']:.0f}",
        )
        table.add_row(name, *cells, f"{row['equal']:.0f}/{len(ids)}")
    out.print(table)
    err.print(
        f"{len(ids)} prompts, canvas {canvas}, block {block}, {torch.get_num_threads()} threads, {device}; "
        "faster and equal: against exact decoding",
        style="dim",
    )
