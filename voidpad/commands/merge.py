"""`voidpad merge`: an adapter folded into its base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voidpad.commands.generate import err
from voidpad.commands.outputs import folder_to_write


def merge(
    model: Annotated[str, typer.Argument(help="base: built-in name, hub id or folder")],
    out: Annotated[Path, typer.Option(help="folder to write", callback=folder_to_write)],
    adapter: Annotated[
        str | None, typer.Option(help="LoRA adapter; not needed if the model names one")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto")] = "auto",
) -> None:
    """Merge a LoRA adapter into its base and save the result as one checkpoint."""
    from voidpad import models

    merged = models.merge(models.load(model, adapter, dtype=dtype))
    models.save(merged, out)
    err.print(f"wrote {out}", style="dim")
