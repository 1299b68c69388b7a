"""`voidpad merge`: an adapter folded into its base, or a checkpoint written in voidpad's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voidpad.commands.loading import CausalBlock, Device, FamilyName, RoleIds, err, load_model
from voidpad.commands.outputs import folder_to_write


def merge(
    model: Annotated[str, typer.Argument(help="base: built-in name, hub id or folder")],
    out: Annotated[Path, typer.Option(help="folder to write", callback=folder_to_write)],
    adapter: Annotated[
        str | None, typer.Option(help="LoRA adapter; not needed if the model names one")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="of the files written: float32, bfloat16 or auto (as the base is stored)")
    ] = "auto",
    device: Device = "cpu",
    family: FamilyName = None,
    roles: RoleIds = None,
    causal_block: CausalBlock = None,
) -> None:
    """Merge a LoRA adapter into its base and save the result as one checkpoint.

    A model without an adapter is saved as it is, under the names and in the layout of transformers.
    """
    import torch

    from voidpad import models
    from voidpad.models.adapter import base_folder
    from voidpad.models.place import DTYPES, STORED
    from voidpad.models.weights import headers, stored_dtype

    models.Place(dtype=dtype)  # an unknown dtype is refused before anything is loaded
    # In float32 whatever is stored: the sum is rounded once, when it is written.
    loaded = load_model(
        model,
        adapter,
        device=device,
        dtype="float32",
        family=family,
        roles=roles,
        causal_block=causal_block,
    )
    if dtype == "auto":
        stored = STORED.get(stored_dtype(headers(base_folder(model))), "float32")
    else:
        stored = dtype
    merged = models.merge(loaded) if loaded.adapted else loaded
    torch.nn.Module.to(merged.net, DTYPES[stored])
    models.save(merged, out)
    err.print(f"wrote {out} in {stored}" + ("" if loaded.adapted else "; there was no adapter"), style="dim")
