"""`voidpad plans`: the ways to decode and their fields."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from voidpad.decode.plan import HELP, PRESETS, describe
from voidpad.errors import ConfigError

out = Console(highlight=False, soft_wrap=True)


def plans(
    name: Annotated[str | None, typer.Argument(help="show the fields of this plan")] = None,
    family: Annotated[str, typer.Option(help="llada or dream: defaults differ")] = "llada",
    model: Annotated[str | None, typer.Option(help="use this checkpoint's family and calibration")] = None,
) -> None:
    """List the ways to decode, or the fields of one of them."""
    if family not in ("llada", "dream"):
        raise ConfigError(f"family={family!r} is unknown; use llada or dream.")
    calibration = None
    if model is not None:
        from voidpad.models import load

        loaded = load(model)
        family, calibration = loaded.family.name, loaded.card.calibration
    if name is None:
        table = Table("plan", "what it does", box=None)
        for key, preset in PRESETS.items():
            table.add_row(key, preset.about)
        table.add_row("<plan>@authors", "with the switches as the authors' code has them")
        out.print(table)
        return
    _, values = describe(name, family=family, calibration=calibration)
    table = Table("option", "default", "meaning", box=None)
    for key, value in values.items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        table.add_row("--" + key.replace("_", "-"), shown, HELP[key])
    out.print(table)
