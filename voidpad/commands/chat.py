"""`voidpad chat`, and the view of a canvas that fills, which `generate --live` shows too."""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from typer import Option

from voidpad.commands.options import ModelOptions, SamplingOptions, Seed, SpeedOptions, SystemPrompt, grouped
from voidpad.commands.ui import err, note
from voidpad.decode.loop import Step
from voidpad.engine.events import Event, Finished, Wrote
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.models import Model

COMMANDS = {
    "/new": "starts over",
    "/help": "prints these lines",
    "/quit": "ends the chat, as Ctrl-D and an empty line do",
}
HELP = (
    "Type a message. A line that ends in a backslash goes on in the next one; in most terminals, pasted lines are one "
    f"message. {'; '.join(f'{name} {what}' for name, what in COMMANDS.items())}."
)


@grouped
def chat(
    source: ModelOptions,
    decoding: SamplingOptions,
    fast: SpeedOptions,
    system: SystemPrompt = None,
    seed: Seed = 0,
    live: bool = Option(True, help="draw the canvas while it fills"),
) -> None:
    """Talk with a model in the terminal; the earlier turns are part of every prompt."""
    opened, wanted = source.open(), decoding.named()
    fields, cache = fast.apply(wanted or opened.default_plan, decoding.fields())
    plan = opened.plan(wanted, **fields)
    model = source.load(opened)
    note(HELP)
    _take_pasted_lines()
    turns: list[dict[str, str]] = []
    while (text := _typed()) not in ("", "/quit"):
        if text == "/new":
            turns = []
            continue
        if re.match(r"/\w*(\s|$)", text):
            note(
                HELP if text == "/help" else f"{text.split()[0]} is unknown; use one of {', '.join(COMMANDS)}"
            )
            continue
        asked = [*turns, {"role": "user", "content": text}]
        try:
            with LiveView(model, err) if live and err.is_terminal else nullcontext() as view:
                [result] = model.generate([asked], plan, listen=view, seed=seed, cache=cache, system=system)
        except ConfigError as error:  # a conversation that has outgrown the context, for one
            err.print(str(error), style="yellow", markup=False)
            continue
        except KeyboardInterrupt:  # ends the answer, not the chat
            note("stopped")
            continue
        print(result.text, flush=True)
        note(f"{result.passes} passes, canvas {result.canvas}, {result.seconds:.2f} s")
        turns = [*asked, {"role": "assistant", "content": result.text}]


def _typed() -> str:
    """The next message, of one or several lines; empty at the end of the input."""
    try:
        text = input("> ")
        while text.endswith("\\"):
            text = f"{text[:-1]}\n{input('. ')}"
    except (EOFError, KeyboardInterrupt):
        return ""
    return text.strip()


def _take_pasted_lines() -> None:
    """Let a terminal hand over pasted lines as one message, where Python has GNU readline."""
    with suppress(ImportError):  # Windows
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")


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
    ids = rows.answer(row)
    written = {slot for slot, _, _ in step.written(row)}
    text, ended = Text(), False
    for slot, token in enumerate(ids):
        if token == roles.mask:
            text.append("░" if ended else "·", "bright_black")
        elif token in roles.ends:
            text.append("⏹", "bold white on red")
        elif token in (roles.void, *roles.rainbow):
            text.append("∅", "magenta")
        else:
            fresh = "bold black on green" if slot in written else "default"
            text.append(str(model.tokenizer.decode([token])), "strike bright_black" if ended else fresh)
        ended = ended or token in roles.ends
    state = "probe" if bool(rows.probing[row]) else "decode"
    left = int(rows.masked[row].sum())
    passes = int(rows.decoded[row] + rows.probed[row] - rows.shared[row])
    signal = "".join(f"  {name} {float(value[row]):.3f}" for name, value in step.signal.items())
    status = f"{state}  pass {passes}  canvas {len(ids)}  masked {left}{signal}"
    return Group(text, Text(status, style="cyan"))
