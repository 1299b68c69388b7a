"""`voidpad chat`: a conversation in the terminal, each answer drawn while it is written."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voidpad.commands.loading import Device, Dtype, Quantize, check_device, load_opened, open_model
from voidpad.commands.options import CacheName, PlanName, Seed, SpeedName, chosen_plan, takes_plan_fields
from voidpad.commands.ui import err
from voidpad.engine.speed import check_speed
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.models import Model

HELP = "Type a message; an empty line, Ctrl-D or /quit ends the chat. /new starts over, /again draws another answer."


@takes_plan_fields
def chat(
    model: Annotated[str, typer.Option(help="built-in name, hub id or folder")] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter, added without merging")] = None,
    plan: PlanName = None,
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    seed: Seed = 0,
    live: Annotated[bool, typer.Option(help="draw the canvas while it fills")] = True,
    cache: CacheName = None,
    speed: SpeedName = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    fields: dict[str, Any] | None = None,
) -> None:
    """Talk with a model in the terminal; the earlier turns are part of every prompt."""
    check_device(device, dtype, quantize)
    opened = open_model(model, adapter)
    wanted = None if plan is None else chosen_plan(plan)
    check_speed(speed, wanted or opened.default_plan)
    built = opened.plan(wanted, **(fields or {}))
    loaded = load_opened(opened, device, dtype, quantize)
    err.print(HELP, style="dim")
    turns: list[dict[str, str]] = []
    while (text := _typed()) is not None:
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
            answer = _answer(loaded, turns, built, live=live, seed=seed, cache=cache, system=system)
        except ConfigError as error:  # a conversation that has outgrown the context, for one
            err.print(str(error), style="yellow")
            turns = turns[:-1]
            continue
        except KeyboardInterrupt:  # ends the answer, not the chat
            err.print("stopped", style="dim")
            turns = turns[:-1]
            continue
        turns.append({"role": "assistant", "content": answer})


def _typed() -> str | None:
    """The next message; None at the end of the input."""
    with suppress(EOFError, KeyboardInterrupt):
        text = input("> ").strip()
        return None if text in ("", "/quit") else text
    return None


def _answer(model: Model, turns: list[dict[str, str]], plan: Any, *, live: bool, **options: Any) -> str:
    """Decode and print one answer."""
    if live and err.is_terminal:
        from voidpad.commands.live import LiveView

        with LiveView(model, err) as view:
            [result] = model.generate([turns], plan, listen=view, **options)
    else:
        [result] = model.generate([turns], plan, **options)
    print(result.text, flush=True)
    passes = result.passes_decode + result.passes_probe - result.passes_shared
    err.print(f"{passes} passes, canvas {result.canvas}, {result.seconds:.2f} s", style="dim")
    return result.text
