"""`voidpad export` and `voidpad merge`: a whole checkpoint as its family was released, or in voidpad's own layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from voidpad.commands.options import Device, grouped, open_model
from voidpad.commands.ui import note
from voidpad.files import check_new_folder

if TYPE_CHECKING:
    import torch

    from voidpad.models import Model


@dataclass(frozen=True)
class WholeCheckpoint:
    """Where a whole checkpoint comes from, and how it is written."""

    model: str = Argument(..., help="base: built-in name, hub id or folder")
    out: Path = Option(..., help="folder to write")
    adapter: str | None = Option(None, help="LoRA adapter, merged into the base")
    dtype: str = Option(
        "auto", help="of the files written: float32, bfloat16, or auto (as the base is stored, float16 too)"
    )
    device: Device = "cpu"
    family: str | None = Option(None, help="of a checkpoint whose config does not say it")
    roles: list[str] | None = Option(None, help="token ids by role: void=56940, rainbow=56940,86766")
    causal_block: int | None = Option(
        None, min=1, help="block size of a block-causal checkpoint that does not say it"
    )

    def load(self) -> tuple[Model, torch.dtype, str]:
        """The model with its adapter merged, the dtype to write it in, and a line that says what was done."""
        import torch

        from voidpad import models
        from voidpad.models.weights import headers, stored_dtype

        models.DeviceConfig(self.device, self.dtype)
        check_new_folder(self.out)
        opened = open_model(
            self.model,
            self.adapter,
            family=self.family,
            roles=self.roles or (),
            causal_block=self.causal_block,
        )
        assert opened.source is not None
        adapted = opened.source.adapter is not None
        tensors = headers(opened.source.folder)
        # A sum is made in float32 whatever is stored, so that it is rounded once, when it is written.
        exact = not adapted and {header.dtype for header in tensors.values()} == {torch.bfloat16}
        loaded = opened.load_weights(self.device, "bfloat16" if exact else "float32")
        written = stored_dtype(tensors) if self.dtype == "auto" else getattr(torch, self.dtype)
        said = f"wrote {self.out} in {str(written).removeprefix('torch.')}"
        if not adapted:
            return loaded, written, f"{said}; there was no adapter"
        return models.merge(loaded), written, said


@grouped
def export(
    whole: WholeCheckpoint,
    like: str | None = Option(None, help="release to take config fields and tokenizer files from"),
) -> None:
    """Write a whole checkpoint for other engines: released config, tensor names and tokenizer files.

    An adapter is merged into its base first. The code that a release brings (modeling_*.py) is not copied.
    """
    from voidpad import models

    model, _, said = whole.load()
    models.export(model, whole.out, like=like, dtype=None if whole.dtype == "auto" else whole.dtype)
    note(said)


@grouped
def merge(whole: WholeCheckpoint) -> None:
    """Merge a LoRA adapter into its base and save the result as one checkpoint.

    It is saved under the names and in the layout of transformers. A model without an adapter is saved as it is.
    """
    import torch

    from voidpad import models

    model, written, said = whole.load()
    torch.nn.Module.to(model.net, written)
    models.save(model, whole.out)
    note(said)
