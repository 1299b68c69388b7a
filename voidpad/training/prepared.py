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
    if wrong := _fault(tensors):
        raise DataError(f"{path}: {wrong}; prepare it again.")
    lengths = tensors["prompt"].long(), tensors["response"].long(), tensors["complete"].bool()
    fixed = tensors["fixed"].bool() if "fixed" in tensors else None
    roles, notes = Roles.parse(json.loads(metadata["roles"])), json.loads(metadata["notes"])
    return Prepared(Pairs(tensors["tokens"], *lengths, fixed), roles, notes)


def _fault(tensors: Mapping[str, Tensor]) -> str:
    """What is wrong with the tensors of a file; empty if nothing is. A run must not train on what was tampered with."""
    if missing := {*TENSORS} - tensors.keys():
        return f"{min(missing)} is missing"
    for name, values in tensors.items():
        if values.ndim != 1 or values.is_floating_point() or values.is_complex():
            return f"{name} is not a row of whole numbers"
        if not len(values):
            return "it holds no examples"
        largest = 1 if name in ("complete", "fixed") else torch.iinfo(torch.int64).max
        if not 0 <= int(values.min()) <= int(values.max()) <= largest:
            return f"{name} holds a number that it cannot have"
    prompt, response, complete = (tensors[name].long() for name in ("prompt", "response", "complete"))
    if not len(prompt) == len(response) == len(complete):
        return "its length tensors differ in size"
    tokens = len(tensors["tokens"])
    if int((prompt + response).sum()) != tokens:
        return f"lengths do not add up to the {tokens} tokens"
    if ((response == 0) & (complete == 0)).any():
        return "an example has an empty response and no EOS, so nothing to learn"
    if "fixed" not in tensors:
        return ""
    if len(tensors["fixed"]) != tokens:
        return "fixed is not as long as the tokens"
    before = torch.nn.functional.pad(
        tensors["fixed"].long().cumsum(0), (1, 0)
    )  # fixed tokens up to each place
    end = (prompt + response).cumsum(0)
    border = end - response
    given = before[end] - before[border]
    if (before[border] > before[border - prompt]).any():
        return "fixed marks tokens of a prompt"
    if ((given > 0) & ((given == response) | (complete == 1))).any():
        return "an example is fixed as a whole, or ends with an EOS after its fixed text"
    return ""


def _small(values: Tensor) -> Tensor:
    """The values in the narrowest integer type that holds them, to keep files small."""
    values = values.contiguous()
    top = int(values.max()) if len(values) else 0
    for dtype in (torch.uint8, torch.int16):
        if top <= torch.iinfo(dtype).max:
            return values.to(dtype)
    return values.to(torch.int32)
