"""`voidpad calibrate`: thresholds for VoidExpansion, chosen from prompts and written next to the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from voidpad.commands.generate import bar, err, out
from voidpad.commands.loading import Device, load_model
from voidpad.commands.options import RowLimit
from voidpad.commands.outputs import folder_there, picture_to_write
from voidpad.commands.prompts import gather
from voidpad.files import beside


def calibrate(
    model: Annotated[
        str, typer.Option(help="a VOID-trained checkpoint: built-in name, hub id or folder")
    ] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter")] = None,
    file: Annotated[
        Path | None, typer.Option(help="prompts: text or JSON lines; - is standard input")
    ] = None,
    prompts: Annotated[
        int, typer.Option(help="for built-in models without --file: prompts from their own tasks", min=1)
    ] = 64,
    canvas: Annotated[int, typer.Option(help="where the canvas starts")] = 64,
    limit: Annotated[
        int | None, typer.Option(help="longest canvas; 512 unless the context leaves less beside the prompts")
    ] = None,
    block: Annotated[int, typer.Option(help="block size, and the step of the canvas")] = 32,
    fit: Annotated[float, typer.Option(help="share of answers that must fit the chosen canvas")] = 0.98,
    rows: RowLimit = 64,
    device: Device = "auto",
    plot: Annotated[
        Path | None, typer.Option(help="write the trade-off as a picture", callback=picture_to_write)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="folder whose voidpad.json gets the values", callback=folder_there)
    ] = None,
) -> None:
    """Choose VoidExpansion's thresholds and window: fewest token-passes at which the answers still fit."""
    from voidpad.experiments.calibrate import Search, choose, fields, frontier, settings, survey
    from voidpad.models import read_card

    longest = canvas + block if limit is None else limit
    Search(start=canvas, limit=longest, block=block, fit=fit)  # refused before anything is loaded
    card = None if save is None else read_card(save)
    texts = (
        gather([], file=file, messages=None)
        if file or not model.startswith("tiny-")
        else own_prompts(prompts)
    )
    loaded = load_model(model, adapter, device=device)
    ids = [loaded.encode(text) for text in texts]
    if limit is None:
        room = loaded.context - max(map(len, ids), default=0)
        limit = min(512, max(canvas, canvas + (room - canvas) // block * block))
    search = Search(start=canvas, limit=limit, block=block, fit=fit)
    with bar(2 + (limit - canvas) // block, shown=True, label="probing") as tick:
        seen = survey(loaded, ids, search, rows=rows, tick=tick)
    found = settings(seen, search)
    chosen = choose(found, fit)
    table = Table(
        "", "window", "tau_nonvoid", "tau_gap", "answers that fit", "token-passes", "mean canvas", box=None
    )
    shown = frontier(found)
    for s in shown if chosen in shown else [*shown, chosen]:
        mark, style = ("chosen", "bold green") if s == chosen else ("", None)
        cells = (
            f"{s.tau_nonvoid:.4f}",
            f"{s.tau_gap:.4f}",
            f"{s.fit:.1%}",
            f"{s.cost:.1%}",
            f"{s.canvas:.1f}",
        )
        table.add_row(mark, str(s.window), *cells, style=style)
    out.print(table)
    err.print(
        f"{len(ids)} prompts; token-passes relative to a fixed canvas of {limit}",
        style="dim",
    )
    if plot is not None:
        _draw(found, chosen, plot)
    if save is not None:
        card = card or loaded.card
        values = {**card.calibration, "void-expansion": fields(chosen, search)}
        replace(card, calibration=values).write(save)
        err.print(f"wrote {save / 'voidpad.json'}", style="dim")


def own_prompts(count: int) -> list[str]:
    """Prompts of the built-in model's tasks, none of them a test problem's."""
    from random import Random

    from voidpad.builtin.problems import split_of
    from voidpad.builtin.tasks import TASKS

    found: list[str] = []
    rng = Random(7)
    while len(found) < count:
        task = list(TASKS.values())[len(found) % len(TASKS)]
        prompt = task.sample(rng).prompt
        if split_of(prompt) == "train":
            found.append(prompt)
    return found


def _draw(found: list, chosen: object, path: Path) -> None:
    """Every setting as a dot: answers that fit against token-passes."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), constrained_layout=True)
    for window in sorted({s.window for s in found}):
        some = [s for s in found if s.window == window]
        axes.scatter([s.cost for s in some], [s.fit for s in some], s=6, alpha=0.4, label=f"window {window}")
    axes.scatter([chosen.cost], [chosen.fit], s=90, marker="*", color="black", label="chosen")  # type: ignore[attr-defined]
    axes.set(xlabel="token-passes, relative to the full canvas", ylabel="share of answers that fit")
    axes.grid(alpha=0.3)
    axes.legend()
    with beside(path) as draft:
        figure.savefig(draft, dpi=130)
    plt.close(figure)
