"""`voidpad chat`: a conversation in the terminal, each answer drawn while it is written."""

from __future__ import annotations

from contextlib import nullcontext

from typer import Option

from voidpad.commands.options import ModelOptions, SamplingOptions, Seed, SpeedOptions, SystemPrompt, grouped
from voidpad.commands.ui import err, note
from voidpad.errors import ConfigError

HELP = "Type a message; an empty line, Ctrl-D or /quit ends the chat. /new starts over, /again draws another answer."


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
    from voidpad.commands.live import LiveView

    opened, wanted = source.open(), decoding.named()
    fields, cache = fast.apply(wanted or opened.default_plan, decoding.fields())
    plan = opened.plan(wanted, **fields)
    model = source.load(opened)
    note(HELP)
    turns: list[dict[str, str]] = []
    while text := _typed():
        if text == "/new":
            turns = []
            continue
        if text == "/again":
            if not turns:
                continue
            turns, seed = turns[:-1], seed + 1
        else:
            turns.append({"role": "user", "content": text})
        try:
            with LiveView(model, err) if live and err.is_terminal else nullcontext() as view:
                [result] = model.generate([turns], plan, listen=view, seed=seed, cache=cache, system=system)
        except ConfigError as error:  # a conversation that has outgrown the context, for one
            err.print(str(error), style="yellow", markup=False)
            turns = turns[:-1]
            continue
        except KeyboardInterrupt:  # ends the answer, not the chat
            note("stopped")
            turns = turns[:-1]
            continue
        print(result.text, flush=True)
        passes = result.passes_decode + result.passes_probe - result.passes_shared
        note(f"{passes} passes, canvas {result.canvas}, {result.seconds:.2f} s")
        turns.append({"role": "assistant", "content": result.text})


def _typed() -> str:
    """The next message; empty at the end of the input."""
    try:
        text = input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
    return "" if text == "/quit" else text
