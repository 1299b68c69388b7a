"""`voidpad plans` and `voidpad recipes`: what ships by name."""

from __future__ import annotations

from typing import Literal

import typer
from typer import Argument, Option

from voidpad.commands.ui import note, out, table
from voidpad.errors import ConfigError
from voidpad.recipes import find_recipe, shipped_recipes


def plans(
    name: str | None = Argument(None, help="show the fields of this plan"),
    family: str | None = Option(None, help="llada (default), dream, ...: plans and defaults differ"),
    model: str | None = Option(None, help="use this checkpoint's family and calibration"),
) -> None:
    """List the ways to decode, or the fields of one of them."""
    from voidpad.decode.presets import ALIASES, PRESETS, schema

    defaults, calibration = None, None
    if name is not None or family is not None or model is not None:
        from voidpad.models import FAMILIES, LLADA, open_checkpoint

        if family not in (*FAMILIES, None):
            raise ConfigError(f"family={family!r} is unknown; use one of {', '.join(FAMILIES)}.")
        defaults = (FAMILIES[family] if family else LLADA).decoding
        if model is not None:
            opened = open_checkpoint(model)
            defaults, calibration = opened.decoding, opened.card.calibration
    if name is None:
        presets = defaults.presets if defaults else PRESETS
        known = []
        for key, preset in presets.items():
            also = ", ".join(alias for alias, base in ALIASES.items() if base == key)
            known.append((f"{key} (also {also})" if also else key, preset.about))
        known.append(("<plan>@authors", "with the switches as the authors' code has them"))
        out.print(table(("plan", "what it does"), known, left=2))
        return
    fields = []
    for field, about in schema(name, defaults, calibration=calibration).items():
        default, bounds = about["default"], ""
        if "maximum" in about:
            open_end = "exclusiveMinimum" in about
            low = f"({about['exclusiveMinimum']:g}" if open_end else f"[{about['minimum']:g}"
            bounds = f"{low}, {about['maximum']:.7g}]"
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        fields.append((field, shown, bounds, about["description"]))
    out.print(table(("field", "default", "range", "meaning"), fields, left=4))
    note("Give them as --set FIELD=VALUE, as keyword arguments in Python, or in a request's `voidpad`.")


def recipes(
    kind: Literal["train", "sweep"] | None = Argument(None, help="Only recipes for this command."),
    path: str | None = Option(None, help="Print the file of the recipe with this name, to copy or to read."),
) -> None:
    """List the recipes that `voidpad train` and `voidpad sweep` take by name."""
    if path is not None:
        sweeps = {recipe.name for recipe in shipped_recipes("sweep")}
        typer.echo(find_recipe(path, "sweep" if path in sweeps else "train"))
        return
    found = [recipe for one in ("train", "sweep") if kind in (None, one) for recipe in shipped_recipes(one)]
    rows = [(f"voidpad {recipe.kind}", recipe.name, recipe.description) for recipe in found]
    out.print(table(("command", "name", "what it does"), rows, left=3))
