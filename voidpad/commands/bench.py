"""`voidpad bench`: decoding speed on this machine, against the plain research loop or with right answers beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from voidpad.commands.bench_frontier import FrontierJob, check_options, run_frontier
from voidpad.commands.eval import AllowCode, WeakSandbox
from voidpad.commands.generate import bar, err, out
from voidpad.commands.loading import Device, load_model
from voidpad.commands.outputs import folder_to_write
from voidpad.commands.prompts import gather
from voidpad.errors import ConfigError


def bench(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="built-in name, hub id or folder")] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter")] = None,
    file: Annotated[Path | None, typer.Option(help="prompts: text or JSON lines")] = None,
    prompts: Annotated[int, typer.Option(help="for built-in models without --file", min=1)] = 32,
    canvas: Annotated[int, typer.Option(min=1, help="fixed canvas")] = 192,
    block: Annotated[int, typer.Option(min=1, help="block size")] = 16,
    rounds: Annotated[int, typer.Option(help="turns in which all decoders share the prompts", min=1)] = 1,
    merged: Annotated[bool, typer.Option(help="merge the adapter first, for all decoders")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads", min=1)] = None,
    device: Device = "auto",
    compile_layers: Annotated[bool, typer.Option("--compile", help="ours with compiled layers")] = False,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier", help="every switch and combination: speed, and right answers on the built-in tasks"
        ),
    ] = False,
    problems: Annotated[int, typer.Option(help="test problems of each task, up to 500", min=1)] = 32,
    tasks: Annotated[str, typer.Option(help="only these tasks of the frontier, separated by commas")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="only this setting of the frontier; may be repeated")
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="folder of the answers, the rows and the picture; an interrupted run goes on from it",
            callback=folder_to_write,
        ),
    ] = None,
    allow_code_execution: AllowCode = False,
    weak_sandbox: WeakSandbox = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON")] = False,
) -> None:
    """Time exact and approximate decoding of the same prompts; everything in one run."""
    check_options(context, frontier=frontier)
    import torch

    from voidpad.commands.calibrate import own_prompts
    from voidpad.experiments.bench import compare, decoders
    from voidpad.models import merge
    from voidpad.models.locate import BUILT_IN

    if threads is not None:
        torch.set_num_threads(threads)
    if frontier:
        from voidpad.evaluate.settings import Resources

        job = FrontierJob(
            model, adapter, tasks, only or [], problems, prompts, rounds, threads, out_dir, as_json
        )
        run_frontier(job, Resources(device=device, allow_code_execution=allow_code_execution,
                                    weak_sandbox=weak_sandbox))  # fmt: skip
        return
    if file is None and model not in BUILT_IN:
        raise ConfigError(
            f"{model}: is no built-in model, so it brings no problems; give prompts with --file."
        )
    texts: Any = gather([], file=file, messages=None) if file else own_prompts(prompts)
    loaded = load_model(model, adapter, device=device)
    if merged:
        loaded = merge(loaded)
    ids = [loaded.encode(text) for text in texts]
    with bar(rounds * len(decoders(loaded, canvas, block)), shown=True, label="timing") as tick:
        found = compare(
            loaded, ids, canvas=canvas, block=block, rounds=rounds, compile_layers=compile_layers, tick=tick
        )
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
        table.add_row(name, *cells, f"{row['equal']}/{len(ids)}")
    out.print(table)
    err.print(
        f"{len(ids)} prompts, canvas {canvas}, block {block}, {torch.get_num_threads()} threads, {device}; "
        "`research` decodes one row at a time, with the logits of the whole row and a float64 softmax",
        style="dim",
    )
