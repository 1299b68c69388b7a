"""Watch a canvas fill in the terminal."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from voidpad.decode.loop import Step
from voidpad.engine.events import Event, Finished, Wrote
from voidpad.models import Model


class LiveView:
    """A listener for an engine's events that draws the canvas of every live row in the terminal.

    Masks are dim, fresh commits green, EOS red, and what follows it struck out.
    """

    def __init__(self, model: Model, console: Console) -> None:
        self.model = model
        self.screen = Live(console=console, refresh_per_second=30, transient=True)
        self.pictures: dict[int, Group] = {}  # by handle

    def __enter__(self) -> LiveView:
        self.screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.screen.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Wrote):
            for row, handle in enumerate(event.handles):
                self.pictures[handle] = _picture(event.step, row, self.model)
            self.screen.update(Group(*self.pictures.values()), refresh=True)
        elif isinstance(event, Finished):
            self.pictures.pop(event.handle, None)


def _picture(step: Step, row: int, model: Model) -> Group:
    """The canvas of one row after a pass, and a line that says where it stands."""
    rows, roles = step.after, model.roles
    start, ids = int(rows.prompt[row]), rows.answer(row)
    chosen = step.chosen[row, start:].tolist()
    text, ended = Text(), False
    for slot, token in enumerate(ids):
        if token == roles.mask:
            text.append("░" if ended else "·", "bright_black")
        elif token == roles.eos:
            text.append("⏹", "bold white on red")
        elif token in (roles.void, *roles.rainbow):
            text.append("∅", "magenta")
        else:
            fresh = "bold black on green" if slot < len(chosen) and chosen[slot] else "default"
            text.append(str(model.tokenizer.decode([token])), "strike bright_black" if ended else fresh)
        ended = ended or token == roles.eos
    state = "probe" if bool(rows.probing[row]) else "decode"
    left = int(rows.masked[row].sum())
    passes = int(rows.decoded[row] + rows.probed[row] - rows.shared[row])
    signal = "".join(f"  {name} {float(value[row]):.3f}" for name, value in step.signal.items())
    status = f"{state}  pass {passes}  canvas {len(ids)}  masked {left}{signal}"
    return Group(text, Text(status, style="cyan"))
