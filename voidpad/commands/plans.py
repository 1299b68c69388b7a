"""`voidpad plans` and `voidpad recipes`: what ships by name."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from voidpad.commands.ui import err, out
from voidpad.decode.presets import PRESETS, schema
from voidpad.errors import ConfigError
from voidpad.recipes import find_recipe, shipped_recipes


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
        from voidpad.models import FAMILIES, LLADA, open_checkpoint

        if family not in (*FAMILIES, None):
            raise ConfigError(f"family={family!r} is unknown; use one of {', '.join(FAMILIES)}.")
        defaults = LLADA.decoding if family is None else FAMILIES[family].decoding
        if model is not None:
            opened = open_checkpoint(model)
            defaults, calibration = opened.decoding, opened.card.calibration
    if name is None:
        table = Table("plan", "what it does", box=None)
        for key, preset in (defaults.presets if defaults else PRESETS).items():
            table.add_row(key, preset.about)
        table.add_row("<plan>@authors", "with the switches as the authors' code has them")
    else:
        table = Table("field", "default", "range", "meaning", box=None)
        for one in schema(name, defaults, calibration=calibration):
            shown = ",".join(map(str, one.default)) if isinstance(one.default, tuple) else str(one.default)
            table.add_row(one.name, shown, one.range, one.help)
    out.print(table)
    if name is not None:
        err.print(
            "Give them as --set FIELD=VALUE, as keyword arguments in Python, or in a request's `voidpad`.",
            style="dim",
        )


class Kind(StrEnum):
    train = "train"
    sweep = "sweep"


def recipes(
    kind: Annotated[Kind | None, typer.Argument(help="Only recipes for this command.")] = None,
    path: Annotated[
        str | None, typer.Option(help="Print the file of the recipe with this name, to copy or to read.")
    ] = None,
) -> None:
    """List the recipes that `voidpad train` and `voidpad sweep` take by name."""
    if path is not None:
        names = {one.value: {recipe.name for recipe in shipped_recipes(one.value)} for one in Kind}
        if Path(path).exists() and not any(path in found for found in names.values()):
            raise ConfigError(f"path={path!r} is a file of your own; give the name of a recipe that ships.")
        typer.echo(find_recipe(path, "sweep" if path in names["sweep"] else "train"))
        return
    table = Table("command", "name", "what it does", box=None, padding=(0, 2, 0, 0))
    for one in (kind,) if kind else Kind:
        for recipe in shipped_recipes(one.value):
            table.add_row(f"voidpad {recipe.kind}", recipe.name, recipe.description)
    out.print(table)
