"""Commit rules: which slots of the frontier are written in this pass.

The frontier is the set of masked slots of a row's active block. A commit rule is called with the score of every
slot (B, L), the frontier (B, L) and each row's progress through its block, and returns the slots to write
(B, L), all of them on the frontier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from voidpad.decode.fields import DecodingRule, setting


@dataclass(frozen=True)
class BlockProgress:
    """How far each row is through its active block."""

    left: Tensor  # (B,) masked slots of the frontier
    entry: Tensor  # (B,) masked slots of the block when decoding entered it
    spent: Tensor  # (B,) decoding passes used in this block
    steps: int  # passes a block may take
    block: int  # slots of a whole block


Commit = Callable[[Tensor, Tensor, BlockProgress], Tensor]
"""A commit rule may also declare, as attributes:

steps: passes it wants to spend on a block (the block size without it);
approximation: the name under which results list it, because it writes several tokens a pass; None if it does not.
    A rule that declares nothing is listed under its own name;
compares_probability: True if scores must be probabilities, as a threshold needs.
"""
Schedule = Callable[[BlockProgress], Tensor]  # -> (B,) how many slots to write in this pass


def even(progress: BlockProgress) -> Tensor:
    """LLaDA's schedule: the block's slots spread evenly over its steps, larger shares first."""
    share = progress.entry // progress.steps + (progress.spent < progress.entry % progress.steps)
    return torch.where(progress.spent < progress.steps, share, progress.left)


def dream(progress: BlockProgress, eps: float = 1e-3) -> Tensor:
    """Dream's schedule: a share of the slots left, rounded down, and all of them in the last step.

    With as many steps as slots, the first pass writes nothing and the last one writes two.
    """
    now = 1 - (1 - eps) * progress.spent.double() / progress.steps
    then = 1 - (1 - eps) * (progress.spent.double() + 1) / progress.steps
    share = (progress.left * (1 - then / now)).floor().long()
    return torch.where(progress.spent < progress.steps - 1, share, progress.left)


def whole(progress: BlockProgress) -> Tensor:
    """SDAR's schedule: a whole block spread evenly over its steps, although prompt tokens may stand in the block."""
    share = progress.block // progress.steps + (progress.spent < progress.block % progress.steps).long()
    return torch.where(progress.spent < progress.steps, share, progress.left)


SCHEDULES: dict[str, Schedule] = {"even": even, "dream": dream}


@dataclass(frozen=True)
class TopK(DecodingRule):
    """Write the slots with the highest scores, as many as the schedule says."""

    steps: int | None = None  # passes per block; None is the block size, one token a pass
    schedule: Schedule = setting(
        even, choices=SCHEDULES, help="even or dream: how a block's slots spread over its passes"
    )

    approximation = None
    compares_probability = False

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        return _highest(score, frontier, self.schedule(progress))


@dataclass(frozen=True)
class Threshold(DecodingRule):
    """Write every slot whose score reaches the threshold; where none does, the slot with the highest score."""

    threshold: float = setting(
        0.9, at_least=0, at_most=1, help="write every slot at least this sure, instead of a schedule"
    )

    approximation = "threshold"
    compares_probability = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        return _or_best(score, frontier, score >= self.threshold)


@dataclass(frozen=True)
class HighConfidence(DecodingRule):
    """The commit rule of DAEDAL and rho-EOS: every slot whose score is above `high`, else the best slot.

    It writes several tokens a pass as these methods define it, so results do not list it as an approximation.
    """

    high: float = setting(0.9, at_least=0, at_most=1, help="a slot surer than this is written")

    approximation = None
    compares_probability = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        return _or_best(score, frontier, score > self.high)


@dataclass(frozen=True)
class Static(DecodingRule):
    """SDAR's static rule: in every pass the surest slots, as many as the schedule of a whole block says."""

    steps: int | None = None  # passes per block; None is the block size, one token a pass

    approximation = None
    compares_probability = False

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        return _highest(score, frontier, whole(progress))


@dataclass(frozen=True)
class Dynamic(Static):
    """SDAR's dynamic rule: every slot above the threshold, or the surest slots where the schedule asks for more.

    It writes several tokens a pass as the method defines it, so results do not list it as an approximation.
    """

    threshold: float = setting(0.95, at_least=0, at_most=1, help="a slot surer than this is written")

    compares_probability = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        sure, quota = frontier & (score > self.threshold), whole(progress)
        enough = sure.sum(1) >= quota
        return torch.where(enough[:, None], sure, _highest(score, frontier, quota))


@dataclass(frozen=True)
class Sequential(Static):
    """SDAR's sequential rule: the leftmost slots, as many as the schedule of a whole block says."""

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        return frontier & (frontier.cumsum(1) <= whole(progress)[:, None])


@dataclass(frozen=True)
class Factor(DecodingRule):
    """Write the n surest slots, n as large as possible with the n-th score at least 1 - factor / (n + 1)."""

    factor: float = setting(1.0, at_least=0, help="factor commits, instead of a schedule")

    approximation = "factor"
    compares_probability = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        ordered = score.masked_fill(~frontier, -torch.inf).sort(dim=1, descending=True).values
        n = torch.arange(1, score.shape[1] + 1)[None]
        count = torch.where(ordered >= 1 - self.factor / (n + 1), n, 1).max(1).values
        return _highest(score, frontier, count)


def _or_best(score: Tensor, frontier: Tensor, sure: Tensor) -> Tensor:
    """The sure slots of the frontier; in rows without any, the slot with the highest score."""
    sure = frontier & sure
    one = torch.ones(len(score), dtype=torch.long)
    return torch.where(sure.any(1, keepdim=True), sure, _highest(score, frontier, one))


def _highest(score: Tensor, frontier: Tensor, count: Tensor) -> Tensor:
    """The slots (B, L) bool with the count[b] highest scores of row b's frontier; among equals the leftmost first."""
    if int(count.max()) == 1:  # the common case needs no sort; argmax takes the first of equals
        best = score.masked_fill(~frontier, -torch.inf).argmax(1, keepdim=True)
        return frontier & torch.zeros_like(frontier).scatter(1, best, True) & (count > 0)[:, None]
    order = score.masked_fill(~frontier, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter(1, order, torch.arange(score.shape[1]).expand_as(order))
    return frontier & (rank < count[:, None])
