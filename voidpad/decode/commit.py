"""Commit rules: which slots of the frontier are written in this pass.

The frontier is the set of masked slots of a row's open block. A commit rule is called with what was proposed for every
slot and with each row's progress through its block. It returns the slots to write, all of them on the frontier.
Tensors (B, W) are windows: for each row the W slots of its open block, from left to right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from voidpad.decode.rules import MOST_PASSES, Rule, is_on

COMES_LAST = 1000.0  # taken off the score of a slot that is to come after all others; more than any entropy


@dataclass(frozen=True)
class Proposed:
    """What the proposal rule says about every slot (B, W) of the open blocks."""

    tokens: Tensor  # int64; -1 (`propose.NOTHING`) where nothing is proposed
    score: Tensor  # float64; minus infinity outside the frontier
    # float64 in nats, infinite outside the frontier; None unless the commit rule reads it.
    entropy: Tensor | None
    frontier: Tensor  # bool, the slots that may be written
    present: Tensor | None = None  # int64, what the slots hold now, -1 for MASK; for rules that edit


@dataclass(frozen=True)
class BlockProgress:
    """How far each row is through its open block."""

    left: Tensor  # (B,) slots of the frontier
    entry_masks: Tensor  # (B,) masked slots of the block when decoding entered it
    passes: Tensor  # (B,) decoding passes used in this block
    steps: int | Tensor  # passes a block may take
    block: int  # slots of a whole block


class CommitRule(Rule):
    """Base of commit rules. A subclass says which slots are written and, where they differ, these facts."""

    # Results list a rule as an approximation if several tokens a pass may lose quality: under this name, or under the
    # name of its class for "". None: it is no approximation.
    approximation: ClassVar[str | None] = ""
    compares_probability: ClassVar[bool] = False  # scores must be probabilities, as a threshold needs
    reads_entropy: ClassVar[bool] = False  # `Proposed.entropy` is needed
    # Written slots of the open block are on the frontier and may be replaced; they are final once the block is left.
    edits: ClassVar[bool] = False

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        """The slots (B, W) bool to write in this pass."""
        raise NotImplementedError

    def passes(self, block: int) -> int:
        """Passes that the rule wants to spend on a block of so many slots."""
        return block


class StepsRule(CommitRule):
    """Base of rules that spread a block over a number of passes."""

    approximation = None

    steps: int | None = Field(
        default=None, ge=1, le=MOST_PASSES, description="passes a block may take (default: one for each slot)"
    )

    def passes(self, block: int) -> int:
        return block if self.steps is None else self.steps


# ---------------------------------------------------------------------------------- rules with a schedule
def even(progress: BlockProgress) -> Tensor:
    """LLaDA's schedule: the block's slots spread evenly over its steps, larger shares first."""
    share = progress.entry_masks // progress.steps + (progress.passes < progress.entry_masks % progress.steps)
    return torch.where(progress.passes < progress.steps, share, progress.left)


def dream(progress: BlockProgress, eps: float = 1e-3) -> Tensor:
    """Dream's schedule: a share of the slots left, rounded down, and all of them in the last step.

    With as many steps as slots, the first pass writes nothing and the last one writes two.
    """
    now = 1 - (1 - eps) * progress.passes.double() / progress.steps
    then = 1 - (1 - eps) * (progress.passes.double() + 1) / progress.steps
    share = (progress.left * (1 - then / now)).floor().long()
    return torch.where(progress.passes < progress.steps - 1, share, progress.left)


def whole_block(progress: BlockProgress) -> Tensor:
    """SDAR's schedule: a whole block spread evenly over its steps, although prompt tokens may stand in the block."""
    extra = progress.passes < progress.block % progress.steps
    share = progress.block // progress.steps + extra.long()
    return torch.where(progress.passes < progress.steps, share, progress.left)


SCHEDULES = {"even": even, "dream": dream}


class TopK(StepsRule):
    """Write the slots with the highest scores, as many as the schedule says."""

    schedule: Literal["even", "dream"] = Field(
        default="even", description="even or dream: how a block's slots spread over its passes"
    )
    position_decay: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="early slots first: the score of a block's slot j is multiplied by exp(-decay j)",
    )

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        score = proposed.score
        if is_on(self.position_decay):
            place = torch.arange(score.shape[1], device=score.device, dtype=torch.float64)[None]
            factor = torch.exp(-self.position_decay * place)
            score = torch.where(score > 0, score * factor, score)  # below zero, a factor would raise it
        return highest(score, proposed.frontier, SCHEDULES[self.schedule](progress))


class Static(StepsRule):
    """SDAR's static rule: in every pass the surest slots, as many as the schedule of a whole block says."""

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        return highest(proposed.score, proposed.frontier, whole_block(progress))


class Dynamic(StepsRule):
    """SDAR's dynamic rule: every slot above the threshold, or the surest slots where the schedule asks for more.

    It writes several tokens a pass as the method defines it, so results do not list it as an approximation.
    """

    threshold: float = Field(default=0.95, ge=0, le=1, description="a slot surer than this is written")

    compares_probability = True

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        sure = proposed.frontier & (proposed.score > self.threshold)
        quota = whole_block(progress)
        enough = sure.sum(1) >= quota
        return torch.where(enough[:, None], sure, highest(proposed.score, proposed.frontier, quota))


class Sequential(StepsRule):
    """SDAR's sequential rule: the leftmost slots, as many as the schedule of a whole block says."""

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        return proposed.frontier & (proposed.frontier.cumsum(1) <= whole_block(progress)[:, None])


# -------------------------------------------------------------------- rules that look at the proposals alone
class Threshold(CommitRule):
    """Write every slot whose score reaches the threshold; where none does, the slot with the highest score."""

    threshold: float = Field(
        default=0.9, ge=0, le=1, description="write every slot at least this sure, instead of a schedule"
    )

    approximation = "threshold"
    compares_probability = True

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        return sure_or_best(proposed, proposed.score >= self.threshold)


class HighConfidence(CommitRule):
    """The commit rule of DAEDAL and rho-EOS: every slot whose score is above `high`, else the best slot.

    It writes several tokens a pass as these methods define it, so results do not list it as an approximation.
    """

    high: float = Field(default=0.9, ge=0, le=1, description="a slot surer than this is written")

    approximation = None
    compares_probability = True

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        return sure_or_best(proposed, proposed.score > self.high)


class Factor(CommitRule):
    """Write the n surest slots, n as large as possible with the n-th score at least 1 - factor / (n + 1)."""

    factor: float = Field(
        default=1.0,
        ge=0,
        le=1e6,
        description="Fast-dLLM's factor rule, instead of a schedule: the larger, the more slots are written in a pass",
    )

    approximation = "factor"
    compares_probability = True

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        return highest(proposed.score, proposed.frontier, self.count(proposed))

    def count(self, proposed: Proposed) -> Tensor:
        """How many slots (B,) are written."""
        score = proposed.score.masked_fill(~proposed.frontier, -torch.inf)
        ordered = score.sort(dim=1, descending=True).values
        n = torch.arange(1, score.shape[1] + 1, device=score.device)[None]
        return torch.where(ordered >= 1 - self.factor / (n.double() + 1), n, 1).amax(1)


class EntropyBound(CommitRule):
    """EB-Sampler: write the best slots, as many as possible while their dependence is bounded.

    The entropies of the slots written in one pass, all but the largest, add up to at most `entropy_bound` nats. That
    sum bounds the information that is ignored when the slots are written independently. Spec rivals 1.1.
    """

    entropy_bound: float = Field(
        default=0.1, ge=0, le=1e6, description="EB-Sampler's bound in nats, instead of a schedule"
    )
    entropy_order: Literal["score", "entropy"] = Field(
        default="score", description="score or entropy: which slots entropy_bound takes first"
    )

    approximation = "entropy_bound"
    compares_probability = True
    reads_entropy = True

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        score, frontier, entropy = proposed.score, proposed.frontier, proposed.entropy
        assert entropy is not None
        if self.entropy_order == "entropy":  # slots of infinite entropy come last, by their score
            score = torch.where(entropy.isfinite(), -entropy, score - COMES_LAST)
        order = score.masked_fill(~frontier, -torch.inf).argsort(dim=1, descending=True, stable=True)
        ordered = entropy.masked_fill(~frontier, torch.inf).gather(1, order)
        largest = torch.nn.functional.pad(ordered.cummax(1).values[:, :-1], (1, 0))  # of the slots before
        bound = torch.minimum(ordered, largest).cumsum(1)  # the sum of all but the largest
        fits = ordered.isfinite() & (bound <= self.entropy_bound)
        return highest(score, frontier, fits.long().cumprod(1).sum(1).clamp(min=1))


class Editing(CommitRule):
    """LLaDA2.1's rule: masks are written as by a threshold, and written tokens of the open block may be replaced.

    A written slot is replaced where another token is likelier than `edit_threshold`. A block that is full is read again
    until a pass replaces nothing, at most `edit_passes` times. No other rule replaces a written token; under this
    one tokens are final once their block is left. Spec families 7.
    """

    threshold: float = Field(default=0.7, ge=0, le=1, description="a masked slot surer than this is written")
    edit_threshold: float = Field(
        default=0.5, ge=0, le=1, description="a written slot is replaced by another token surer than this"
    )
    edit_passes: int = Field(
        default=16, ge=1, le=MOST_PASSES, description="passes over a full block before it is left anyway"
    )

    approximation = None
    compares_probability = True
    edits = True

    def __call__(self, proposed: Proposed, progress: BlockProgress) -> Tensor:
        assert proposed.present is not None
        masked = proposed.frontier & (proposed.present < 0)
        written = sure_or_best(replace(proposed, frontier=masked), proposed.score > self.threshold)
        other = (proposed.tokens != proposed.present) & (proposed.score > self.edit_threshold)
        return written | (proposed.frontier & ~masked & other)


def sure_or_best(proposed: Proposed, sure: Tensor) -> Tensor:
    """The sure slots of the frontier; in rows without any, the slot with the highest score."""
    sure = proposed.frontier & sure
    # argmax takes the first of equals. A row without a frontier gets no slot.
    best = proposed.score.masked_fill(~proposed.frontier, -torch.inf).argmax(1, keepdim=True)
    alone = proposed.frontier & torch.zeros_like(sure).scatter(1, best, True)
    return torch.where(sure.any(1, keepdim=True), sure, alone)


def highest(score: Tensor, frontier: Tensor, count: Tensor) -> Tensor:
    """The slots (B, W) bool with the count[b] highest scores of row b's frontier; among equals the leftmost first."""
    order = score.masked_fill(~frontier, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = torch.arange(score.shape[1], device=score.device).expand_as(order)
    rank = torch.empty_like(order).scatter(1, order, place)
    return frontier & (rank < count[:, None])
