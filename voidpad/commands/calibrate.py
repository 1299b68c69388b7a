"""`voidpad calibrate`: thresholds for VoidExpansion, chosen from prompts and written next to the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from typer import Option

from voidpad.commands.data import FieldMap, SkipBad, Turns
from voidpad.commands.options import ModelOptions, RowLimit, grouped
from voidpad.commands.prompts import builtin_prompts, gather
from voidpad.commands.ui import bar, note, out, output_file, output_picture, table
from voidpad.errors import ConfigError
from voidpad.files import store


@grouped
def calibrate(
    source: ModelOptions,
    file: Path | None = Option(None, help="prompts: text or JSON lines; - is standard input"),
    chats: list[str] | None = Option(
        None,
        help="chats as `voidpad data prepare` reads them; may be given again",
    ),
    turns: Turns = Option(Turns.last, help="of a chat, what comes before which answers"),
    names: FieldMap = None,
    skip_bad: SkipBad = False,
    prompts: int = Option(64, min=1, help="drawn from --chats, or made for a built-in model without --file"),
    canvas: int = Option(64, help="where the canvas starts"),
    limit: int | None = Option(None, help="longest canvas; 512 if the context leaves so much"),
    block: int = Option(32, help="block size, and the step of the canvas"),
    fit: float = Option(0.98, help="share of answers that must fit the chosen canvas"),
    rows: RowLimit = 64,
    page: Path | None = output_file(None, "write what was measured and chosen as a page"),
    plot: Path | None = output_picture("write the trade-off as a picture"),
    save: Path | None = Option(
        None, help="folder whose voidpad.json gets the values", exists=True, file_okay=False
    ),
) -> None:
    """Choose VoidExpansion's thresholds and window: fewest token-passes at which the answers still fit."""
    from voidpad.experiments.calibrate import HEADS, Calibration, Search, choose, fields, settings, survey
    from voidpad.models import read_card
    from voidpad.models.locate import locate
    from voidpad.training.chats import field_map
    from voidpad.training.corpus import CorpusRequest

    if chats and file:
        raise ConfigError("--chats and --file: give one of them; both name the prompts")
    Search(start=canvas, limit=limit or canvas, block=block, fit=fit)  # refused before anything is loaded
    parts = [source.model, *([source.adapter] if source.adapter else [])]
    if save is not None and save.resolve() not in [locate(name).resolve() for name in parts]:
        raise ConfigError(
            f"--save {save}: is another checkpoint than the one that is calibrated, {parts[-1]}."
        )
    own = file is None and not chats and source.model.startswith("tiny-")
    texts: list[Any] = builtin_prompts(prompts) if own else [] if chats else gather(file=file)
    origin = "of the built-in model's tasks" if own else ", ".join(chats or [str(file or "standard input")])
    opened = source.open()
    if opened.card.padding not in (None, "void"):
        raise ConfigError(
            f"{parts[-1]}: was trained with {opened.card.padding} padding, so its VOID means nothing; calibrate a "
            "VOID-trained checkpoint."
        )
    ids = [opened.encode(text) for text in texts]
    if chats:
        request = CorpusRequest(
            max_length=opened.context - (limit or canvas),
            sample=None,
            skip_bad=skip_bad,
            turns=turns.value,
            names=field_map(names),
        )
        ids = _of_chats(chats, source.model, request, prompts)
    if limit is None:
        room = opened.context - max(map(len, ids), default=0)
        limit = min(512, max(canvas, canvas + (room - canvas) // block * block))
    search = Search(start=canvas, limit=limit, block=block, fit=fit)
    model = source.load(opened)
    with bar(2 + (limit - canvas) // block, label="probing") as tick:
        seen = survey(model, ids, search, rows=rows, tick=tick)
    tried = settings(seen, search)
    done = Calibration(source.model, origin, search, seen, tried, choose(tried, fit), source.adapter)
    out.print(table(HEADS, done.rows))
    note(f"{len(ids)} prompts; token-passes relative to a fixed canvas of {limit}")
    if plot is not None:
        from voidpad.diagnose.plots import save as save_figure
        from voidpad.experiments.calibrate_page import trade_off

        save_figure(trade_off(done), plot)
    if page is not None:
        from voidpad.experiments.calibrate_page import calibration_html

        store(page, [calibration_html(done)])
        note(f"wrote {page}")
    if save is not None:
        card = read_card(save) or model.card
        values = {**card.calibration, "void-expansion": fields(done.chosen, search)}
        replace(card, calibration=values).write(save)
        note(f"wrote {save / 'voidpad.json'}")


def _of_chats(sources: list[str], model: str, request: Any, count: int) -> list[list[int]]:
    """The prompts of training chats as ids: a sample of those that leave room for a canvas, each once."""
    from voidpad.training.corpus import prepare

    prepared, counts = prepare(sources, model, request)
    note(str(counts))
    pairs = prepared.pairs
    spans = zip(pairs.start.tolist(), pairs.prompt.tolist(), strict=True)
    prompts = dict.fromkeys(tuple(pairs.tokens[start : start + size].tolist()) for start, size in spans)
    return [list(prompt) for prompt in Random(7).sample(list(prompts), min(count, len(prompts)))]
