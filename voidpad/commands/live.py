"""Watch a canvas fill in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from voidpad.decode.loop import Step
from voidpad.models import Model

STYLES = {
    "mask": "bright_black",
    "word": "default",
    "fresh": "bold black on green",
    "eos": "bold white on red",
}


def watch(steps: Iterable[Step], model: Model, console: Console, *, delay: float = 0.0) -> Iterator[Step]:
    """The steps, drawn as they pass: masks dim, fresh commits green, EOS red, what follows it struck out."""
    with Live(console=console, refresh_per_second=30, transient=True) as live:
        for step in steps:
            live.update(Group(*(picture(step, row, model) for row in range(len(step.after)))), refresh=True)
            yield step
            if delay:
                time.sleep(delay)


def picture(step: Step, row: int, model: Model) -> Group:
    """The canvas of one row after a pass, and a line that says where it stands."""
    rows, roles = step.after, model.roles
    start, ids = int(rows.canvas.prompt[row]), rows.canvas.answer(row)
    chosen = step.chosen[row, start:].tolist()
    text, ended = Text(), False
    for slot, token in enumerate(ids):
        fresh = slot < len(chosen) and chosen[slot]
        text.append(*piece(model, token, fresh=fresh, ended=ended))
        ended = ended or token == roles.eos
    state = "probe" if bool(rows.probing[row]) else "decode"
    left = int(rows.canvas.masked[row].sum())
    passes = int(rows.decoded[row] + rows.probed[row] - rows.shared[row])
    signal = "".join(f"  {name} {float(value[row]):.3f}" for name, value in step.signal.items())
    return Group(
        text, Text(f"{state}  pass {passes}  canvas {len(ids)}  masked {left}{signal}", style="cyan")
    )


def piece(model: Model, token: int, *, fresh: bool, ended: bool) -> tuple[str, str]:
    if token == model.roles.mask:
        return ("·" if not ended else "░"), STYLES["mask"]
    if token == model.roles.eos:
        return "⏹", STYLES["eos"]
    if token in (model.roles.void, *model.roles.rainbow):
        return "∅", "magenta"
    word = str(model.tokenizer.decode([token]))
    return word, "strike bright_black" if ended else STYLES["fresh" if fresh else "word"]
