"""What published programs do beside their methods: the rules of the `@authors` presets.

Each class repeats one slip or one deviation of released code, for tables that are compared with it. The ordinary rules
have none of them. Spec 0.5 lists the deviations.
"""

from __future__ import annotations

import math
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from voidpad.decode.commit import Factor, Proposed
from voidpad.decode.length import RhoEos, VoidExpansion
from voidpad.decode.plan import Plan
from voidpad.decode.propose import GumbelProposal, SampledProposal
from voidpad.decode.rules import MOST_PASSES, Rule


class AuthorsGumbel(GumbelProposal):
    """LLaDA's proposal in which MASK may be chosen; a slot in which MASK is written stays masked."""

    proposes_mask = True


class AuthorsSampled(SampledProposal):
    """Dream's proposal in which MASK may be chosen; a slot in which MASK is written stays masked."""

    proposes_mask = True


class AuthorsFactor(Factor):
    """Fast-dLLM's factor rule as released: if the last candidate alone misses its bar, it is written too."""

    def count(self, proposed: Proposed) -> Tensor:
        count = super().count(proposed)
        return torch.where(count == proposed.frontier.sum(1) - 1, count + 1, count)


class AuthorsVoidExpansion(VoidExpansion):
    """VoidExpansion as released: the limit is rounded down, and MASK counts among the non-VOID tokens."""

    ignored = ("void",)

    def rounded_limit(self, block: int) -> int:
        return math.floor(self.limit / block) * block


class AuthorsRhoEos(RhoEos):
    """rho-EOS as released: a contraction may leave nothing, and segments are counted in float32."""

    insert_at: Literal["end", "before_first_eos"] = Field(
        default="before_first_eos", description="where rho-EOS adds masks: end or before_first_eos"
    )

    slack = 0.0

    def change(self, rho: Tensor) -> Tensor:
        return super().change(rho.float())

    def shortest(self, block: int) -> int:
        return self.minimum

    def fit_blocks(self, block: int) -> AuthorsRhoEos:
        return self


class DreamLoop(Plan):
    """Dream's released loop: a block is left after its passes, although masks may remain in it.

    The passes of a block bound the rules without a schedule, such as a threshold, too.
    """

    block_steps: int | None = Field(default=None, ge=1, le=MOST_PASSES, description="passes a block may take")

    leaves_blocks = True

    @property
    def steps(self) -> int:
        return self.commit.passes(self.block) if self.block_steps is None else self.block_steps


AUTHORS_RULES: dict[type[Rule], type[Rule]] = {
    GumbelProposal: AuthorsGumbel,
    SampledProposal: AuthorsSampled,
    Factor: AuthorsFactor,
    VoidExpansion: AuthorsVoidExpansion,
    RhoEos: AuthorsRhoEos,
}


R = TypeVar("R", bound=Rule)


def as_published(rule: type[R]) -> type[R]:
    """The class that does what the published program does where the ordinary rule does something else."""
    return AUTHORS_RULES.get(rule, rule)  # type: ignore[return-value]
