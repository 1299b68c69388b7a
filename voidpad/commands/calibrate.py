"""`voidpad calibrate`: thresholds for VoidExpansion, chosen from prompts and written next to the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from voidpad.commands.data import Turns
from voidpad.commands.loading import Device, load_model
from voidpad.commands.options import RowLimit
from voidpad.commands.prompts import gather
from voidpad.commands.ui import bar, err, file_to_write, folder_to_write, out, picture_to_write
from voidpad.errors import ConfigError
from voidpad.files import store

if TYPE_CHECKING:
    from voidpad.experiments.calibrate import Calibration


def calibrate(
    model: Annotated[
        str, typer.Option(help="a VOID-trained checkpoint: built-in name, hub id or folder")
    ] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter")] = None,
    file: Annotated[
        Path | None, typer.Option(help="prompts: text or JSON lines; - is standard input")
    ] = None,
    chats: Annotated[
        list[str] | None,
        typer.Option(
            help="training chats instead of prompts: a file or hub data set as `voidpad data prepare` reads them; "
            "may be given again"
        ),
    ] = None,
    turns: Annotated[
        Turns, typer.Option(help="of a chat, what comes before its last answer, or every one")
    ] = Turns.last,
    names: Annotated[
        str | None,
        typer.Option("--map", help="names of the chats' fields, such as prompt=question,response=answer"),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave out chats that cannot be read")] = False,
    prompts: Annotated[
        int,
        typer.Option(
            help="how many are drawn from --chats, or made for a built-in model without --file", min=1
        ),
    ] = 64,
    canvas: Annotated[int, typer.Option(help="where the canvas starts")] = 64,
    limit: Annotated[
        int | None, typer.Option(help="longest canvas; 512 unless the context leaves less beside the prompts")
    ] = None,
    block: Annotated[int, typer.Option(help="block size, and the step of the canvas")] = 32,
    fit: Annotated[float, typer.Option(help="share of answers that must fit the chosen canvas")] = 0.98,
    rows: RowLimit = 64,
    device: Device = "auto",
    page: Annotated[
        Path | None, typer.Option(help="write what was measured and chosen as a page", callback=file_to_write)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="write the trade-off as a picture", callback=picture_to_write)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="folder whose voidpad.json gets the values", callback=folder_to_write)
    ] = None,
) -> None:
    """Choose VoidExpansion's thresholds and window: fewest token-passes at which the answers still fit."""
    from voidpad.experiments.calibrate import Calibration, Search, choose, fields, settings, survey
    from voidpad.models import read_card
    from voidpad.training.chats import field_map

    if chats and file:
        raise ConfigError("--chats and --file: give one of them; both name the prompts")
    mapped = field_map(names)
    longest = canvas + block if limit is None else limit
    Search(start=canvas, limit=longest, block=block, fit=fit)  # refused before anything is loaded
    if save is not None and not save.is_dir():
        raise ConfigError(f"--save {save}: there is no such folder; name that of the checkpoint.")
    card = None if save is None else read_card(save)
    if save is not None and card is not None:
        _check_same(save, [name for name in (model, adapter) if name])
    texts: list[Any] = []
    if not chats:
        own = file is None and model.startswith("tiny-")
        texts = own_prompts(prompts) if own else gather([], file=file, messages=None)
        source = "of the built-in model's tasks" if own else str(file or "standard input")
    loaded = load_model(model, adapter, device=device)
    if loaded.card.padding not in (None, "void"):
        raise ConfigError(
            f"{adapter or model}: was trained with {loaded.card.padding} padding, so its VOID means nothing; "
            "calibrate a VOID-trained checkpoint."
        )
    ids = [loaded.encode(text) for text in texts]
    if chats:
        room = loaded.context - (limit or canvas)
        ids, source = _of_chats(chats, model, room, prompts, turns.value, mapped, skip_bad), ", ".join(chats)
    if limit is None:
        room = loaded.context - max(map(len, ids), default=0)
        limit = min(512, max(canvas, canvas + (room - canvas) // block * block))
    search = Search(start=canvas, limit=limit, block=block, fit=fit)
    with bar(2 + (limit - canvas) // block, shown=True, label="probing") as tick:
        seen = survey(loaded, ids, search, rows=rows, tick=tick)
    tried = settings(seen, search)
    done = Calibration(model, source, search, seen, tried, choose(tried, fit), adapter)
    out.print(_table(done))
    err.print(f"{len(ids)} prompts; token-passes relative to a fixed canvas of {limit}", style="dim")
    if plot is not None:
        from voidpad.diagnose.plots import save as save_figure
        from voidpad.experiments.calibrate_page import trade_off

        save_figure(trade_off(done), plot)
    if page is not None:
        from voidpad.experiments.calibrate_page import calibration_html

        store(page, [calibration_html(done)])
        err.print(f"wrote {page}", style="dim")
    if save is not None:
        card = card or loaded.card
        values = {**card.calibration, "void-expansion": fields(done.chosen, search)}
        replace(card, calibration=values).write(save)
        err.print(f"wrote {save / 'voidpad.json'}", style="dim")


def _check_same(save: Path, names: list[str]) -> None:
    """Refuse to write one checkpoint's thresholds into the card of another."""
    from voidpad.models.locate import locate

    if save.resolve() not in [locate(name).resolve() for name in names]:
        raise ConfigError(
            f"--save {save}: is another checkpoint than the one that is calibrated, {names[-1]}."
        )


def _table(done: Calibration) -> Table:
    from voidpad.experiments.calibrate import HEADS

    table = Table(*HEADS, box=None)
    for cells in done.rows:
        table.add_row(*cells, style="bold green" if cells[0] else None)
    return table


def _of_chats(
    sources: list[str], model: str, room: int, count: int, turns: str, names: dict[str, str], skip_bad: bool
) -> list[list[int]]:
    """The prompts of training chats as ids: a sample of those that leave room for a canvas, each once."""
    from voidpad.training.corpus import CorpusRequest, prepare

    request = CorpusRequest(max_length=room, sample=None, skip_bad=skip_bad, turns=turns, names=names)
    prepared, counts = prepare(sources, model, request)
    err.print(str(counts), style="dim")
    pairs = prepared.pairs
    starts, sizes = pairs.start.tolist(), pairs.prompt.tolist()
    prompts = {
        tuple(pairs.tokens[start : start + size].tolist()): None
        for start, size in zip(starts, sizes, strict=True)
    }
    order = Random(7).sample(list(prompts), min(count, len(prompts)))
    return [list(prompt) for prompt in order]


def own_prompts(count: int) -> list[str]:
    """Prompts of the built-in model's tasks of one turn, none of them a test problem's."""
    from voidpad.builtin.tasks import TASKS

    tasks, rng = [task for name, task in TASKS.items() if name != "tiny_turns"], Random(7)
    return [tasks[number % len(tasks)].sample(rng).prompt for number in range(count)]
