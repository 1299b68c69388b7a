"""Training examples as token ids, and the safetensors file that keeps them.

The file is mapped, not loaded, so it may exceed the memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from voidpad.errors import DataError, first_line
from voidpad.files import atomic_file, readable
from voidpad.roles import Roles

FORMAT, VERSION = "voidpad-data", "1"
TENSORS = ("tokens", "prompt", "response", "complete")
QUANTILES = {"min": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}


@dataclass(frozen=True)
class Example:
    """One prompt and its answer, as ids, without the closing EOS.

    For infilling, `fixed` lists the spans (start, end) of the response that are given, as the prompt is: they are never
    hidden and carry no loss. Such a row ends with its text: neither EOS nor padding follows, and no window cuts it.
    """

    prompt: Sequence[int]
    response: Sequence[int]
    complete: bool = True  # False: the answer was cut, so no EOS may follow it
    fixed: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Pairs:
    """Many examples in one flat tensor: `prompt response prompt response ...`. The tensor may be a mapped file."""

    tokens: Tensor  # (T,) integer ids
    prompt: Tensor  # (N,) prompt lengths
    response: Tensor  # (N,) response lengths
    complete: Tensor  # (N,) bool
    fixed: Tensor | None = None  # (T,) bool: tokens of a response that are given; None: there are none
    begin: Tensor | None = None  # (N,) where each example starts in `tokens`; None: they follow one another

    @classmethod
    def of(cls, rows: Sequence[Example]) -> Pairs:
        tokens = [token for row in rows for part in (row.prompt, row.response) for token in part]
        fixed = torch.zeros(len(tokens), dtype=torch.bool)
        start = 0
        for row in rows:
            start += len(row.prompt)
            for first, last in row.fixed:
                if not 0 <= first < last <= len(row.response):
                    raise DataError(f"fixed: ({first}, {last}) is no span of {len(row.response)} tokens.")
                fixed[start + first : start + last] = True
            start += len(row.response)
        return cls(
            torch.tensor(tokens, dtype=torch.long),
            torch.tensor([len(row.prompt) for row in rows]),
            torch.tensor([len(row.response) for row in rows]),
            torch.tensor([row.complete and not row.fixed for row in rows]),
            fixed if any(row.fixed for row in rows) else None,
        )

    def __len__(self) -> int:
        return len(self.prompt)

    @cached_property
    def size(self) -> Tensor:
        """Prompt and response together, (N,) int64."""
        return self.prompt.long() + self.response.long()

    @cached_property
    def start(self) -> Tensor:
        """Where each example begins in `tokens`."""
        return self.size.cumsum(0) - self.size if self.begin is None else self.begin

    @cached_property
    def has_gaps(self) -> Tensor:
        """Which examples have fixed text in their response, (N,) bool."""
        if self.fixed is None:
            return torch.zeros(len(self), dtype=torch.bool, device=self.tokens.device)
        before = torch.nn.functional.pad(self.fixed.cumsum(0), (1, 0))
        return before[self.start + self.size] > before[self.start]

    def spans(self, row: int) -> list[tuple[str, list[int]]]:
        """The parts of an example in order, with their ids: "prompt", then "answer" (learnt) and "fixed" (given), and
        "end" with none where an EOS follows."""
        start = int(self.start[row])
        border, end = start + int(self.prompt[row]), start + int(self.size[row])
        answer = self.tokens[border:end].tolist()
        given = [False] * len(answer) if self.fixed is None else self.fixed[border:end].tolist()
        found = [("prompt", self.tokens[start:border].tolist())]
        for is_given, part in groupby(zip(given, answer, strict=True), lambda one: one[0]):
            found.append(("fixed" if is_given else "answer", [token for _, token in part]))
        return [*found, ("end", [])] if self.complete[row] else found

    def select(self, rows: Tensor) -> Pairs:
        """Some of the examples. The tokens are shared, not copied."""
        lengths = self.prompt[rows], self.response[rows], self.complete[rows]
        return Pairs(self.tokens, *lengths, self.fixed, self.start[rows])

    def to(self, device: torch.device | str) -> Pairs:
        parts = (self.tokens, self.prompt, self.response, self.complete, self.fixed, self.start)
        return Pairs(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]

    def statistics(self) -> dict[str, Any]:
        """Counts and lengths. `cdf` is F(m), the share of examples whose response has at most m tokens."""
        response = self.response.double()
        longest = int(response.max())
        found: dict[str, Any] = {
            "examples": len(self),
            "tokens": len(self.tokens),
            "truncated": int((~self.complete & ~self.has_gaps).sum()),
        }
        for name, lengths in (("prompt", self.prompt.double().numpy()), ("response", response.numpy())):
            values = np.quantile(lengths, [*QUANTILES.values()]).tolist()
            found[name] = {**dict(zip(QUANTILES, values, strict=True)), "mean": float(lengths.mean())}
        steps = [*(2**k for k in range(3, 14) if 2**k < longest), longest]
        found["cdf"] = {m: float((response <= m).double().mean()) for m in steps}
        return found


@dataclass(frozen=True)
class Prepared:
    """Examples with the roles their ids were made for."""

    pairs: Pairs
    roles: Roles
    notes: Mapping[str, Any] = field(default_factory=dict)  # counts, source, tokenizer: facts about the file


def write(path: Path | str, pairs: Pairs, roles: Roles, *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a prepared file. A file with the final name is always complete."""
    tensors = {name: _narrow(getattr(pairs, name)) for name in TENSORS}
    if pairs.fixed is not None:
        tensors["fixed"] = _narrow(pairs.fixed)
    facts = {"roles": json.dumps(roles.stored()), "notes": json.dumps(dict(notes or {}))}
    try:
        with atomic_file(Path(path)) as draft:
            save_file(tensors, draft, metadata={"format": FORMAT, "version": VERSION, **facts})
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be written ({first_line(error)}).") from None


def read(path: Path | str) -> Prepared:
    """A prepared file. The tokens stay in it: a page is read when a row that lies on it is used."""
    with readable(Path(path), "prepared data", DataError), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
            raise DataError(f"{path}: not a data file of this version; make one with `voidpad data prepare`.")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        roles, notes = Roles(**json.loads(metadata["roles"])), json.loads(metadata["notes"])
        tokens, prompt, response, complete = (tensors[name] for name in TENSORS)
    if not all(map(_are_counts, tensors.values())):
        raise DataError(f"{path}: its tensors are not rows of ids and lengths; prepare it again.")
    fixed = tensors["fixed"].bool() if "fixed" in tensors else None
    pairs = Pairs(tokens, prompt.long(), response.long(), complete.bool(), fixed)
    same_count = len(prompt) == len(response) == len(complete)
    if not same_count or {int(pairs.size.sum()), len(tensors.get("fixed", tokens))} != {len(tokens)}:
        raise DataError(f"{path}: its lengths do not add up to its tokens; prepare it again.")
    if ((pairs.response == 0) & ~pairs.complete).any():
        raise DataError(f"{path}: an example has neither response nor EOS to learn; prepare it again.")
    return Prepared(pairs, roles, notes)


def _are_counts(values: Tensor) -> bool:
    """Whether a tensor is one row of whole numbers from zero on, not empty."""
    return values.ndim == 1 and not values.is_floating_point() and len(values) > 0 and int(values.min()) >= 0


def _narrow(values: Tensor) -> Tensor:
    """The values in the narrowest integer type that holds them, to keep files small."""
    top = int(values.max()) if len(values) else 0
    dtype = next((one for one in (torch.uint8, torch.int16) if top <= torch.iinfo(one).max), torch.int32)
    return values.contiguous().to(dtype)
