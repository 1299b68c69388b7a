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
from voidpad.files import atomic_file
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
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file; make one with `voidpad data prepare`.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path}: not a prepared data file, or a damaged one ({first_line(error)}); make one of it with "
            "`voidpad data prepare`."
        ) from None
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        raise DataError(f"{path}: not a data file of this version; make one with `voidpad data prepare`.")
    missing = sorted({"tokens", "prompt", "response", "complete"} - set(tensors))
    if wrong := f"{missing[0]} is missing" if missing else _fault(tensors):
        raise DataError(f"{path}: {wrong}; prepare it again.")
    prompt, response = tensors["prompt"].long(), tensors["response"].long()
    tokens, complete = tensors["tokens"], tensors["complete"].bool()
    fixed = tensors["fixed"].bool() if "fixed" in tensors else None
    roles, notes = Roles.parse(json.loads(metadata["roles"])), json.loads(metadata["notes"])
    return Prepared(Pairs(tokens, prompt, response, complete, fixed), roles, notes)


def _fault(tensors: Mapping[str, Tensor]) -> str:
    """What is wrong with the tensors of a file; empty if nothing is."""
    known = {
        name: tensors[name]
        for name in ("tokens", "prompt", "response", "complete", "fixed")
        if name in tensors
    }
    for name, values in known.items():
        if values.ndim != 1 or values.is_floating_point() or values.is_complex():
            return (
                f"{name} has shape {tuple(values.shape)} and type {values.dtype}, not a row of whole numbers"
            )
        if name != "complete" and not len(values):
            return "it holds no examples"
        low, high = (
            int(value) for value in torch.aminmax(values.byte() if values.dtype == torch.bool else values)
        )
        if low < 0 or (name in ("complete", "fixed") and high > 1):
            return f"{name} holds {low if low < 0 else high}"
    prompt, response, complete = (known[name].long() for name in ("prompt", "response", "complete"))
    if not len(prompt) == len(response) == len(complete):
        return "its length tensors differ in size"
    tokens = len(known["tokens"])
    if int((prompt + response).sum()) != tokens:
        return f"lengths do not add up to the {tokens} tokens"
    if bool(((response == 0) & (complete == 0)).any()):
        return "an example has an empty response and no EOS, so nothing to learn"
    if "fixed" not in known:
        return ""
    if len(known["fixed"]) != tokens:
        return "fixed is not as long as the tokens"
    before = torch.nn.functional.pad(known["fixed"].long().cumsum(0), (1, 0))
    end = (prompt + response).cumsum(0)
    given = before[end] - before[end - response]
    if bool((before[end - response] - before[end - response - prompt]).any()):
        return "fixed marks tokens of a prompt"
    if bool(((given > 0) & ((given == response) | (complete == 1))).any()):
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
