"""`voidpad export`: a whole checkpoint as it was released, or in voidpad's layout; `voidpad merge` is the latter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from typer import Argument, Option

from voidpad.commands.options import Adapter, CausalBlock, Device, Family, RoleIds, grouped, open_model
from voidpad.commands.ui import counting, err, note
from voidpad.errors import ConfigError
from voidpad.files import check_new_folder


class Layout(StrEnum):
    released = "released"
    voidpad = "voidpad"


@dataclass(frozen=True)
class ExportOptions:
    """Where a whole checkpoint comes from, and how it is written."""

    adapter: Adapter = None
    dtype: str = Option(
        "auto", help="of the files written: float32, bfloat16 or auto (as the base is stored)"
    )
    device: Device = "cpu"
    family: Family = None
    roles: RoleIds = None
    causal_block: CausalBlock = None


NAME = Argument(..., help="base: built-in name, hub id or folder")
OUT = Option(..., help="folder to write")


@grouped
def export(
    how: ExportOptions,
    model: str = NAME,
    out: Path = OUT,
    layout: Layout = Option(Layout.released, help="for other engines, or transformers' names"),
    like: str | None = Option(None, help="release to take config fields and tokenizer files from"),
) -> None:
    """Write a whole checkpoint for other engines: released config, tensor names and tokenizer files.

    An adapter is merged into its base first. The code that a release brings (modeling_*.py) is not copied.
    """
    _write(model, out, how, layout, like)


@grouped
def merge(how: ExportOptions, model: str = NAME, out: Path = OUT) -> None:
    """Merge a LoRA adapter into its base and save the result as one checkpoint.

    The same as `export --layout voidpad`: under the names and in the layout of transformers. A model without an adapter
    is saved as it is.
    """
    _write(model, out, how, Layout.voidpad, None)


def _write(model: str, out: Path, how: ExportOptions, layout: Layout, like: str | None) -> None:
    import torch

    from voidpad import models
    from voidpad.models.weights import headers, stored_dtype

    if like is not None and layout is not Layout.released:
        raise ConfigError(f"--like {like!r} is for --layout released; drop it.")
    models.DeviceConfig(how.device, how.dtype)
    check_new_folder(out)
    opened = open_model(
        model, how.adapter, family=how.family, roles=how.roles or (), causal_block=how.causal_block
    )
    assert opened.source is not None
    adapted = opened.source.adapter is not None
    tensors = headers(opened.source.folder)
    # A sum is made in float32 whatever is stored, so that it is rounded once, when it is written.
    exact = not adapted and {header.dtype for header in tensors.values()} == {torch.bfloat16}
    loaded = opened.load_weights(how.device, "bfloat16" if exact else "float32")
    merged = models.merge(loaded) if adapted else loaded
    written = stored_dtype(tensors) if how.dtype == "auto" else getattr(torch, how.dtype)
    if layout is Layout.voidpad:
        torch.nn.Module.to(merged.net, written)
        models.save(merged, out)
    else:
        with counting(shown=err.is_terminal) as bar:
            task = bar.add_task("tensors", total=None)
            models.export(
                merged,
                out,
                like=like,
                dtype=None if how.dtype == "auto" else how.dtype,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    note(
        f"wrote {out} in {str(written).removeprefix('torch.')}"
        + ("" if adapted else "; there was no adapter")
    )
