"""`voidpad export`: a whole checkpoint as it was released, or in voidpad's layout; `voidpad merge` is the latter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voidpad.commands.loading import CausalBlock, Device, FamilyName, RoleIds, load_model, role_ids
from voidpad.commands.ui import counting, err, folder_to_write
from voidpad.errors import ConfigError
from voidpad.files import check_new_folder

LAYOUTS = ("released", "voidpad")

Name = Annotated[str, typer.Argument(help="base: built-in name, hub id or folder")]
Out = Annotated[Path, typer.Option(help="folder to write", callback=folder_to_write)]
Adapter = Annotated[str | None, typer.Option(help="LoRA adapter; not needed if the model names one")]
Dtype = Annotated[
    str, typer.Option(help="of the files written: float32, bfloat16 or auto (as the base is stored)")
]


def export(
    model: Name,
    out: Out,
    layout: Annotated[
        str, typer.Option(help="released (for other engines) or voidpad (transformers' names)")
    ] = "released",
    adapter: Adapter = None,
    like: Annotated[
        str | None,
        typer.Option(help="release to take config fields and tokenizer files from, if the model is not one"),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    family: FamilyName = None,
    roles: RoleIds = None,
    causal_block: CausalBlock = None,
) -> None:
    """Write a whole checkpoint for other engines: released config, tensor names and tokenizer files.

    An adapter is merged into its base first. The code that a release brings (modeling_*.py) is not copied.
    """
    import torch

    from voidpad import models
    from voidpad.models.adapter import base_folder, is_adapter
    from voidpad.models.device import DTYPES, STORED
    from voidpad.models.locate import locate
    from voidpad.models.weights import headers, stored_dtype

    if layout not in LAYOUTS:
        raise ConfigError(f"--layout {layout!r} is unknown; use {' or '.join(LAYOUTS)}.")
    if like is not None and layout != "released":
        raise ConfigError(f"--like {like!r} is for --layout released; drop it.")
    models.DeviceConfig(
        device, dtype
    )  # what is wrong whatever the model is refused before anything is loaded
    role_ids(roles or ())
    check_new_folder(out)
    adapted = adapter is not None or is_adapter(locate(model))
    tensors = headers(base_folder(model))
    stored = STORED.get(stored_dtype(tensors), "float32")
    # A sum is made in float32 whatever is stored, so that it is rounded once, when it is written.
    exact = not adapted and {header.dtype for header in tensors.values()} == {"BF16"}
    loaded = load_model(
        model,
        adapter,
        device=device,
        dtype="bfloat16" if exact else "float32",
        family=family,
        roles=roles,
        causal_block=causal_block,
    )
    merged = models.merge(loaded) if loaded.adapted else loaded
    written = stored if dtype == "auto" else dtype
    if layout == "voidpad":
        torch.nn.Module.to(merged.net, DTYPES[written])
        models.save(merged, out)
    else:
        with counting(shown=err.is_terminal) as bar:
            task = bar.add_task("tensors", total=None)
            models.export(
                merged,
                out,
                like=like,
                dtype=None if dtype == "auto" else dtype,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    err.print(f"wrote {out} in {written}" + ("" if adapted else "; there was no adapter"), style="dim")


def merge(
    model: Name,
    out: Out,
    adapter: Adapter = None,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    family: FamilyName = None,
    roles: RoleIds = None,
    causal_block: CausalBlock = None,
) -> None:
    """Merge a LoRA adapter into its base and save the result as one checkpoint.

    The same as `export --layout voidpad`: under the names and in the layout of transformers. A model without an adapter
    is saved as it is.
    """
    shared = {"adapter": adapter, "dtype": dtype, "device": device, "family": family, "roles": roles}
    export(model, out, "voidpad", **shared, causal_block=causal_block)  # type: ignore[arg-type]
