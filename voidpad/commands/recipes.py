"""`voidpad recipes`: the recipes that ship, by name."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from voidpad.errors import ConfigError
from voidpad.recipes import find_recipe, shipped_recipes


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
    Console(highlight=False, soft_wrap=True).print(table)
