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

from voidpad.errors import DataError, RoleError, reason
from voidpad.files import beside
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
    largest: int | None = None  # the largest token id, as the file says

    @property
    def largest_id(self) -> int:
        """The largest token id. Files written before voidpad noted it are read through to find it."""
        return int(self.pairs.tokens.max()) if self.largest is None else self.largest


def write(path: Path | str, pairs: Pairs, roles: Roles, *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a prepared file. A file with the final name is always complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: _small(getattr(pairs, name)) for name in TENSORS}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "roles": json.dumps(roles.stored()),
        "notes": json.dumps(dict(notes or {})),
        "largest": str(int(pairs.tokens.max())) if len(pairs.tokens) else "0",
    }
    try:
        with beside(path) as draft:
            save_file(tensors, draft, metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be written ({error}).") from None


def read(path: Path | str) -> Prepared:
    """A prepared file, checked: the lengths add up and every example has something to learn.

    The tokens stay in the file: a page of it is read when a row that lies on it is used.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            missing = set(TENSORS) - set(file.keys())
            if metadata.get("format") != FORMAT or missing:
                raise DataError(f"{path}: not a prepared data file; make one with `voidpad data prepare`.")
            if metadata.get("version") != VERSION:
                raise DataError(
                    f"{path}: data version {metadata.get('version')!r} is unknown; prepare it again."
                )
            pairs = Pairs(*(file.get_tensor(name) for name in TENSORS))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; make one with `voidpad data prepare`.") from None
    except (SafetensorError, OSError) as error:
        if Path(path).suffix != ".safetensors":
            raise DataError(
                f"{path}: not a prepared data file; make one of it with `voidpad data prepare`."
            ) from None
        raise DataError(f"{path}: damaged data file ({reason(error)}); prepare it again.") from None
    _check(path, pairs)
    pairs = Pairs(pairs.tokens, pairs.prompt.long(), pairs.response.long(), pairs.complete.bool())
    try:
        roles = Roles.parse(json.loads(metadata["roles"]))
        largest = int(metadata["largest"]) if "largest" in metadata else None
        notes = json.loads(metadata.get("notes", "{}"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RoleError) as error:
        raise DataError(f"{path}: damaged metadata ({reason(error)}); prepare it again.") from None
    return Prepared(pairs, roles, notes, largest)


def _check(path: Path | str, pairs: Pairs) -> None:
    sizes = {len(pairs.prompt), len(pairs.response), len(pairs.complete)}
    if sizes == {0} or len(sizes) != 1:
        raise DataError(
            f"{path}: it holds no examples, or its length tensors differ in size; prepare it again."
        )
    if (
        int(pairs.size.sum()) != len(pairs.tokens)
        or min(int(pairs.prompt.min()), int(pairs.response.min())) < 0
    ):
        raise DataError(f"{path}: lengths do not add up to the {len(pairs.tokens)} tokens; prepare it again.")
    if bool(((pairs.response == 0) & ~pairs.complete.bool()).any()):
        raise DataError(
            f"{path}: an example has an empty response and no EOS, so nothing to learn; prepare it again."
        )


def _small(values: Tensor) -> Tensor:
    """The values in the narrowest integer type that holds them, to keep files small."""
    values = values.contiguous()
    top = int(values.max()) if len(values) else 0
    for dtype in (torch.uint8, torch.int16):
        if top <= torch.iinfo(dtype).max:
            return values.to(dtype)
    return values.to(torch.int32)
