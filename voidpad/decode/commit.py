"""Commits: which slots of the frontier are written in this pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clock:
    """Where each row stands inside its block."""

    left: Tensor  # (B,) masks of the frontier
    entry: Tensor  # (B,) masks of the block when it was opened
    spent: Tensor  # (B,) passes used in this block
    steps: int  # passes a block may take


Quota = Callable[[Clock], Tensor]  # -> (B,) how many slots to write


def even(clock: Clock) -> Tensor:
    """LLaDA: the block's masks spread evenly over its steps, the larger shares first."""
    share = clock.entry // clock.steps + (clock.spent < clock.entry % clock.steps)
    return torch.where(clock.spent < clock.steps, share, clock.left)


def dream(clock: Clock, eps: float = 1e-3) -> Tensor:
    """Dream: the floor of a share of what is left, all at the last step. The first is often zero."""
    now = 1 - (1 - eps) * clock.spent.double() / clock.steps
    then = 1 - (1 - eps) * (clock.spent.double() + 1) / clock.steps
    share = (clock.left * (1 - then / now)).floor().long()
    return torch.where(clock.spent < clock.steps - 1, share, clock.left)


@dataclass(frozen=True)
class TopK:
    """The surest slots, as many as the quota says."""

    steps: int | None = None  # passes per block; the block size unless told
    quota: Quota = even

    def __call__(self, score: Tensor, frontier: Tensor, clock: Clock) -> Tensor:
        return surest(score, frontier, self.quota(clock))


@dataclass(frozen=True)
class Threshold:
    """Every slot at least this sure; the surest one if there is none."""

    tau: float = 0.9
    strict: bool = False  # DAEDAL and rho-EOS ask for more than tau

    def __call__(self, score: Tensor, frontier: Tensor, clock: Clock) -> Tensor:
        sure = frontier & ((score > self.tau) if self.strict else (score >= self.tau))
        return torch.where(
            sure.any(1, keepdim=True), sure, surest(score, frontier, torch.ones_like(clock.left))
        )


@dataclass(frozen=True)
class Factor:
    """The largest n such that the n-th surest slot has confidence at least 1 - f / (n + 1)."""

    f: float = 1.0

    def __call__(self, score: Tensor, frontier: Tensor, clock: Clock) -> Tensor:
        ordered = score.masked_fill(~frontier, -torch.inf).sort(dim=1, descending=True).values
        n = torch.arange(1, score.shape[1] + 1)[None]
        count = torch.where(ordered >= 1 - self.f / (n + 1), n, 1).max(1).values
        return surest(score, frontier, count)


Commit = TopK | Threshold | Factor


def surest(score: Tensor, frontier: Tensor, count: Tensor) -> Tensor:
    """The `count[b]` highest scores of each row's frontier; the smaller position among equals."""
    if int(count.max()) == 1:  # the common case needs no sort; argmax takes the first of equals
        best = score.masked_fill(~frontier, -torch.inf).argmax(1, keepdim=True)
        return frontier & torch.zeros_like(frontier).scatter(1, best, True) & (count > 0)[:, None]
    order = score.masked_fill(~frontier, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter(1, order, torch.arange(score.shape[1]).expand_as(order))
    return frontier & (rank < count[:, None])
