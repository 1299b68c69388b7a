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
    start: Tensor  # (B,) the column at which the block starts
    block: int  # slots of a whole block


Commit = Callable[..., Tensor]  # (score, frontier, progress), and the entropy where the rule reads it
"""A commit rule may also declare, as attributes:

steps: passes it wants to spend on a block (the block size without it);
approximation: the name under which results list it, because it writes several tokens a pass; None if it does not.
    A rule that declares nothing is listed under its own name;
compares_probability: True if scores must be probabilities, as a threshold needs;
reads_entropy: True if the rule is called with a fourth tensor (B, L): the entropy in nats of each slot's scored
    distribution, infinite where the token to be written is not the most probable one.

A rule of voidpad that a preset offers names in `switch` the field whose value, if it is not 0, selects the rule.
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


UNSURE = 1000.0  # taken off the scores of slots that come after all others; more than any entropy
SCHEDULES: dict[str, Schedule] = {"even": even, "dream": dream}


@dataclass(frozen=True)
class TopK(DecodingRule):
    """Write the slots with the highest scores, as many as the schedule says."""

    steps: int | None = None  # passes per block; None is the block size, one token a pass
    schedule: Schedule = setting(
        even, choices=SCHEDULES, help="even or dream: how a block's slots spread over its passes"
    )
    position_decay: float = setting(
        0.0,
        at_least=0,
        help="early slots first: the score of a block's slot j is multiplied by exp(-decay j)",
    )

    approximation = None

    @property
    def compares_probability(self) -> bool:
        """A factor on the score means something only where scores cannot be negative."""
        return self.position_decay > 0

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        if self.position_decay:
            place = torch.arange(score.shape[1])[None] - progress.start[:, None]
            score = torch.where(score > 0, score * torch.exp(-self.position_decay * place.double()), score)
        return _highest(score, frontier, self.schedule(progress))


@dataclass(frozen=True)
class Threshold(DecodingRule):
    """Write every slot whose score reaches the threshold; where none does, the slot with the highest score."""

    threshold: float = setting(
        0.9, at_least=0, at_most=1, help="write every slot at least this sure, instead of a schedule"
    )

    switch = approximation = "threshold"
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

    factor: float = setting(
        1.0,
        at_least=0,
        help="Fast-dLLM's factor rule, instead of a schedule: the larger, the more slots are written in a pass",
    )
    factor_last: bool = setting(
        False,
        authors=True,
        help="with factor: write the last candidate too if it alone misses its bar, as Fast-dLLM's code does",
    )

    switch = approximation = "factor"
    compares_probability = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        ordered = score.masked_fill(~frontier, -torch.inf).sort(dim=1, descending=True).values
        n = torch.arange(1, score.shape[1] + 1)[None]
        count = torch.where(ordered >= 1 - self.factor / (n.double() + 1), n, 1).max(1).values
        if self.factor_last:
            count = torch.where(count == frontier.sum(1) - 1, count + 1, count)
        return _highest(score, frontier, count)


ENTROPY_ORDERS = ("score", "entropy")


@dataclass(frozen=True)
class EntropyBound(DecodingRule):
    """EB-Sampler: write the best slots, as many as possible while their dependence is bounded.

    The entropies of the slots written in one pass, all but the largest, add up to at most `entropy_bound` nats. That
    sum bounds the information that is ignored when the slots are written independently. Spec rivals 1.1.
    """

    entropy_bound: float = setting(0.1, at_least=0, help="EB-Sampler's bound in nats, instead of a schedule")
    entropy_order: str = setting(
        "score", choices=ENTROPY_ORDERS, help="score or entropy: which slots entropy_bound takes first"
    )

    switch = approximation = "entropy_bound"
    compares_probability = True
    reads_entropy = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress, entropy: Tensor) -> Tensor:
        if self.entropy_order == "entropy":  # slots of infinite entropy come last, by their score
            score = torch.where(entropy.isfinite(), -entropy, score - UNSURE)
        order = score.masked_fill(~frontier, -torch.inf).argsort(dim=1, descending=True, stable=True)
        ordered = entropy.masked_fill(~frontier, torch.inf).gather(1, order)
        largest = torch.nn.functional.pad(ordered.cummax(1).values[:, :-1], (1, 0))  # of the slots before
        bound = torch.minimum(ordered, largest).cumsum(1)  # the sum of all but the largest
        fits = ordered.isfinite() & (bound <= self.entropy_bound)
        return _highest(score, frontier, fits.long().cumprod(1).sum(1).clamp(min=1))


@dataclass(frozen=True)
class LocalLeap(DecodingRule):
    """Threshold decoding that also writes less sure slots close to a sure one. Spec rivals 1.5."""

    threshold: float = setting(0.9, at_least=0, at_most=1, help="a slot at least this sure is an anchor")
    leap: float = setting(
        0.75,
        at_least=0,
        at_most=1,
        help="LocalLeap: near a slot above the threshold, this sure is enough; needs threshold",
    )
    leap_radius: int = setting(4, at_least=1, help="how many positions away leap still holds")

    switch = approximation = "leap"
    compares_probability = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        anchors = frontier & (score >= self.threshold)
        reach = min(self.leap_radius, score.shape[1])
        near = torch.nn.functional.max_pool1d(anchors[:, None].float(), 2 * reach + 1, 1, reach)[:, 0] > 0
        return _or_best(score, frontier, anchors | (near & (score >= self.leap)))


@dataclass(frozen=True)
class Hierarchical(DecodingRule):
    """dInfer's hierarchical decoding: sure slots, and the surest slot of each run of masks. Spec rivals 1.4.

    A run is a stretch of neighbouring masks of the block; its surest slot is written if it is surer than `each_run`.
    """

    threshold: float = setting(0.9, at_least=0, at_most=1, help="a slot surer than this is always written")
    each_run: float = setting(
        0.4,
        at_least=0,
        at_most=1,
        help="hierarchical: the surest slot of a run of masks is written above this; needs threshold",
    )

    switch = approximation = "each_run"
    compares_probability = True

    def __call__(self, score: Tensor, frontier: Tensor, progress: BlockProgress) -> Tensor:
        begins = frontier & ~torch.nn.functional.pad(frontier[:, :-1], (1, 0))
        run = begins.cumsum(1) * frontier  # 1, 2, ... inside the runs, 0 outside
        best = torch.full((len(score), score.shape[1] + 1), -torch.inf, dtype=score.dtype)
        best = best.scatter_reduce(1, run, score.masked_fill(~frontier, -torch.inf), "amax")
        leads = frontier & (score == best.gather(1, run))
        nth = leads.cumsum(1)
        before = torch.where(begins, nth - leads.long(), 0).cummax(1).values  # leads left of the run
        surest = leads & (nth - before == 1) & (score > self.each_run)
        one = torch.ones(len(score), dtype=torch.long)
        return surest | (frontier & (score > self.threshold)) | _highest(score, frontier, one)


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
