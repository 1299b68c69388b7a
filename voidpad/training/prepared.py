"""Prepared training data: one safetensors file of token ids. It is mapped, not loaded, so it may exceed the memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from voidpad.errors import DataError, first_line
from voidpad.files import atomic_file, readable
from voidpad.roles import Roles
from voidpad.training.padding import Pairs

FORMAT, VERSION = "voidpad-data", "1"
TENSORS = ("tokens", "prompt", "response", "complete")


@dataclass(frozen=True)
class Prepared:
    """Examples with the roles their ids were made for."""

    pairs: Pairs
    roles: Roles
    notes: Mapping[str, Any] = field(default_factory=dict)  # counts, source, tokenizer: facts about the file

    @property
    def largest_id(self) -> int:
        return int(self.pairs.tokens.max())


def write(path: Path | str, pairs: Pairs, roles: Roles, *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a prepared file. A file with the final name is always complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: _small(getattr(pairs, name)) for name in TENSORS}
    if pairs.fixed is not None:
        tensors["fixed"] = _small(pairs.fixed)
    facts = {"roles": json.dumps(roles.stored()), "notes": json.dumps(dict(notes or {}))}
    try:
        with atomic_file(path) as draft:
            save_file(tensors, draft, metadata={"format": FORMAT, "version": VERSION, **facts})
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be written ({first_line(error)}).") from None


def read(path: Path | str) -> Prepared:
    """A prepared file. The tokens stay in it: a page is read when a row that lies on it is used."""
    with readable(Path(path), "`voidpad data prepare`", DataError), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        raise DataError(f"{path}: not a data file of this version; make one with `voidpad data prepare`.")
    lengths = tensors["prompt"].long(), tensors["response"].long(), tensors["complete"].bool()
    fixed = tensors["fixed"].bool() if "fixed" in tensors else None
    pairs = Pairs(tensors["tokens"], *lengths, fixed)
    if not len(pairs) or int(pairs.size.sum()) != len(pairs.tokens):
        raise DataError(f"{path}: no examples, or other lengths than its tokens have; prepare it again.")
    if ((pairs.response == 0) & ~pairs.complete).any():
        raise DataError(f"{path}: an example has neither response nor EOS to learn; prepare it again.")
    return Prepared(pairs, Roles.parse(json.loads(metadata["roles"])), json.loads(metadata["notes"]))


def _small(values: Tensor) -> Tensor:
    """The values in the narrowest integer type that holds them, to keep files small."""
    values = values.contiguous()
    top = int(values.max()) if len(values) else 0
    for dtype in (torch.uint8, torch.int16):
        if top <= torch.iinfo(dtype).max:
            return values.to(dtype)
    return values.to(torch.int32)
