"""Block-causal attention: a token sees its own block and the blocks before it, never a later one.

Blocks count from position 0 of the row, not from the end of the prompt. So the last tokens of a prompt may share a
block with the first slots of the answer, and a canvas need not be a whole number of blocks.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from voidpad.decode.canvas import Canvas
from voidpad.decode.rules import MOST_SLOTS, Rule
from voidpad.errors import PlanError


def horizon(position: Tensor, block: int) -> Tensor:
    """Where the block of each position ends: a query at the position sees the keys before it, and no others."""
    return (torch.div(position, block, rounding_mode="floor") + 1) * block


class CausalBlocks(Rule):
    """How a plan follows a block-causal network."""

    size: int = Field(ge=1, le=MOST_SLOTS, description="positions in a block of the network's attention")
    lead: bool = Field(
        default=False,
        description="a block's first slot is written before its other slots, alone and greedily",
    )

    def check(self, block: int, ahead: str | None) -> None:
        """Refuse a plan's block that does not fit, and the rule `ahead` that reads or edits slots of later blocks."""
        if self.size % block:
            raise PlanError(
                f"block={block} does not divide the blocks of {self.size} in which the model's attention runs; "
                f"use {self.size} or a divisor.",
                field="block",
            )
        if ahead is not None:
            raise PlanError(
                f"{ahead} has no meaning for block-causal attention, where no slot sees later blocks; "
                "use a canvas of one length without trim.",
                field=ahead.partition("=")[0],
            )

    def whole_blocks(self, prompt: Tensor, slots: Tensor) -> Tensor:
        """How many slots (B,) a row needs to hold at least `slots` and to end with a whole block."""
        return horizon(prompt + slots - 1, self.size) - prompt

    def leads(self, position: Tensor) -> Tensor:
        """True at the positions that are written alone."""
        return (position % self.size == 0) & self.lead

    def frontier(self, canvas: Canvas, window: Tensor) -> Tensor:
        """The slots of the active block (B, L) that may be written now: its first slot alone while that is masked."""
        alone = window & self.leads(canvas.offset)
        return torch.where(alone.any(1, keepdim=True), alone, window)
