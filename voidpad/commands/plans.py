"""`voidpad plans`: the ways to decode and their fields."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from voidpad.decode.plan import PRESETS, schema
from voidpad.errors import ConfigError

out = Console(highlight=False, soft_wrap=True)


def plans(
    name: Annotated[str | None, typer.Argument(help="show the fields of this plan")] = None,
    family: Annotated[
        str | None, typer.Option(help="llada (default), dream, ...: plans and defaults differ")
    ] = None,
    model: Annotated[str | None, typer.Option(help="use this checkpoint's family and calibration")] = None,
) -> None:
    """List the ways to decode, or the fields of one of them."""
    defaults, calibration = None, None
    if name is not None or family is not None or model is not None:
        from voidpad.models import FAMILIES, LLADA, load

        if family not in (*FAMILIES, None):
            raise ConfigError(f"family={family!r} is unknown; use one of {', '.join(FAMILIES)}.")
        defaults = LLADA.decoding if family is None else FAMILIES[family].decoding
        if model is not None:
            loaded = load(model)
            defaults, calibration = loaded.decoding, loaded.card.calibration
    if name is None:
        table = Table("plan", "what it does", box=None)
        for key, preset in (defaults.presets if defaults else PRESETS).items():
            table.add_row(key, preset.about)
        table.add_row("<plan>@authors", "with the switches as the authors' code has them")
    else:
        table = Table("option", "default", "range", "meaning", box=None)
        for one in schema(name, defaults, calibration=calibration):
            shown = ",".join(map(str, one.default)) if isinstance(one.default, tuple) else str(one.default)
            allowed = (
                "" if one.bounds is None else str(one.bounds).removeprefix("lie in ").removeprefix("be ")
            )
            table.add_row("--" + one.name.replace("_", "-"), shown, allowed, one.help)
    out.print(table)
