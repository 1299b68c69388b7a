"""Padding policies: which tokens follow the EOS of an answer. In nothing else do the three trainings differ.

`POLICIES` is the table of them. A new policy also needs the plan that decodes a model trained with it, and the role of
its tokens (`PLANS` and `TAUGHT_ROLES` in `models/card.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from voidpad.errors import RoleError
from voidpad.roles import Roles
from voidpad.training.prepared import Example, Pairs


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
                f"padding.policy: {self.name} needs the role {self.role!r}; there is none in {roles}."
            )
        return roles.ids([self.role])

    @property
    def adds_tokens(self) -> bool:
        """Whether it pads with tokens that only padding uses, so that the model has yet to learn them."""
        return self.role != "eos"


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
    policy: str,
    roles: Roles,
    *,
    longest_row_gets_eos: bool = True,
    width: Tensor | None = None,
) -> Batch:
    """A mini-batch padded to its own width S_B, or row by row to `width` (B,)."""
    pairs, chosen = Pairs.of(rows), POLICIES[policy]
    if width is None:
        width = batch_width(pairs.size, eos=longest_row_gets_eos or chosen.longest_row_gets_eos)
    return lay_out(pairs, torch.arange(len(pairs)), chosen, roles, width=width)


def batch_width(sizes: Tensor, *, eos: bool = True) -> Tensor:
    """S_B for every row of a mini-batch whose prompt + response lengths are `sizes` (spec 1.1).

    `eos` makes room for the EOS of the longest row; the authors' collator makes none.
    """
    return (sizes.max() + int(eos)).expand(len(sizes))


def lay_out(pairs: Pairs, rows: Tensor, policy: PaddingPolicy, roles: Roles, *, width: Tensor) -> Batch:
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
    cycle = torch.tensor(policy.tokens(roles), device=device)
    # Padding tokens are counted from each row's own EOS.
    ids = torch.where(padding, cycle[(column - size - 1) % len(cycle)], ids)
    target, eos = inside & (column >= prompt), inside & (column == size)
    if pairs.fixed is not None:
        target &= ~(pairs.fixed[source] & (column < size))
    return Batch(ids, target, eos, padding, inside)
