"""Padding policies: which tokens follow the EOS of an answer. In nothing else do the three trainings differ.

`POLICIES` is the table of them. A new policy also needs the plan that decodes a model trained with it, and its advice,
in `models/card.py` (`PLANS`, `_ADVICE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from voidpad.errors import DataError, RoleError
from voidpad.roles import Roles


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
                    raise DataError(
                        f"fixed: ({first}, {last}) is no span of {len(row.response)} response tokens."
                    )
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
    def sorted_size(self) -> Tensor:
        return self.size.sort().values

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
        start, border = int(self.start[row]), int(self.start[row] + self.prompt[row])
        end = border + int(self.response[row])
        found = [("prompt", self.tokens[start:border].tolist())]
        given = [False] * (end - border) if self.fixed is None else self.fixed[border:end].tolist()
        for is_given, part in groupby(
            zip(given, self.tokens[border:end].tolist(), strict=True), lambda one: one[0]
        ):
            found.append(("fixed" if is_given else "answer", [token for _, token in part]))
        return [*found, ("end", [])] if self.complete[row] else found

    def select(self, rows: Tensor) -> Pairs:
        """Some of the examples. The tokens are shared, not copied."""
        lengths = self.prompt[rows], self.response[rows], self.complete[rows]
        return Pairs(self.tokens, *lengths, self.fixed, self.start[rows])

    def to(self, device: torch.device | str) -> Pairs:
        parts = (self.tokens, self.prompt, self.response, self.complete, self.fixed, self.start)
        return Pairs(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PaddingPolicy:
    """What the slots after an answer's EOS hold, and what follows from that."""

    name: str
    role: str  # the tokens of this role are repeated from the slot after the row's own EOS on
    forced: bool = False  # the semantic EOS is always hidden and weighs 1 (spec 1.3)
    longest_row_gets_eos: bool = False  # even under padding.longest_row_gets_eos = false

    def tokens(self, roles: Roles) -> tuple[int, ...]:
        """The padding tokens, in the order in which they are repeated."""
        if not getattr(roles, self.role):
            raise RoleError(
                f"padding.policy: {self.name} needs the role {self.role!r}, and these roles have none: {roles}."
            )
        return roles.ids([self.role])

    @property
    def adds_tokens(self) -> bool:
        """Whether it pads with tokens that only padding uses, so that the model has yet to learn them."""
        return self.role != "eos"

    def roles(self, roles: Roles, colours: int) -> Roles:
        """The roles of a model trained with this policy: of several tokens it uses the first `colours`."""
        if self.role != "rainbow":
            return roles
        if len(roles.rainbow) < colours:
            raise RoleError(f"padding.colours: {colours} requested, but the model has {len(roles.rainbow)}.")
        return replace(roles, rainbow=roles.rainbow[:colours])


PolicyName = Literal["eos", "void", "rainbow"]  # what a recipe may say
POLICIES = {
    policy.name: policy
    for policy in (
        PaddingPolicy("eos", role="eos"),
        PaddingPolicy("void", role="void", forced=True, longest_row_gets_eos=True),
        PaddingPolicy("rainbow", role="rainbow"),
    )
}


@dataclass(frozen=True)
class Batch:
    """Clean rows, and what each slot is. Rows are padded on the right; attention sees the slots in `inside`."""

    ids: Tensor  # (B, S) int64
    target: Tensor  # (B, S) bool: may carry loss - response without its fixed parts, EOS and padding
    eos: Tensor  # (B, S) bool: the semantic EOS
    padding: Tensor  # (B, S) bool: after it
    inside: Tensor  # (B, S) bool

    @property
    def slots(self) -> Tensor:
        """L_{B,k}, the target slots of each row, (B,)."""
        return self.target.sum(1)

    def to(self, device: torch.device | str) -> Batch:
        return Batch(*(part.to(device) for part in vars(self).values()))


def pad(
    rows: Sequence[Example],
    how: str,
    roles: Roles,
    *,
    longest_row_gets_eos: bool = True,
    width: Tensor | None = None,
) -> Batch:
    """A mini-batch padded to its own width S_B, or row by row to `width` (B,)."""
    pairs, policy = Pairs.of(rows), POLICIES[how]
    if width is None:
        width = batch_width(pairs.size, eos=longest_row_gets_eos or policy.longest_row_gets_eos)
    return lay_out(pairs, torch.arange(len(pairs)), policy, roles, width=width)


def batch_width(sizes: Tensor, *, eos: bool = True) -> Tensor:
    """S_B for every row of a mini-batch whose prompt + response lengths are `sizes` (spec 1.1).

    `eos` makes room for the EOS of the longest row; the authors' collator makes none.
    """
    return (sizes.max() + int(eos)).expand(len(sizes))


def lay_out(pairs: Pairs, rows: Tensor, how: PaddingPolicy, roles: Roles, *, width: Tensor) -> Batch:
    """The examples `rows` (B,) of `pairs` as padded tensors. An answer that was cut gets no EOS and no padding.

    `width` (B,), on the host, says how far each row is padded: the device is not asked how wide the tensors are.
    """
    device = pairs.tokens.device
    column = torch.arange(int(width.max()), device=device)[None]
    width = width.to(device, non_blocking=True)[:, None]
    prompt, size = pairs.prompt[rows, None], pairs.size[rows, None]
    end = torch.where(pairs.complete[rows, None], width, torch.minimum(size, width))
    inside = column < end
    source = (pairs.start[rows, None] + column).clamp_(max=len(pairs.tokens) - 1)
    padding = (column > size) & inside
    ids = pairs.tokens[source].long().masked_fill_(column >= size, roles.eos)  # outside, too: never seen
    cycle = torch.tensor(how.tokens(roles), device=device)
    ids = torch.where(
        padding, cycle[(column - size - 1) % len(cycle)], ids
    )  # counted from each row's own EOS
    target, eos = inside & (column >= prompt), inside & (column == size)
    if pairs.fixed is not None:
        target &= ~(pairs.fixed[source] & (column < size))
    return Batch(ids, target, eos, padding, inside)
