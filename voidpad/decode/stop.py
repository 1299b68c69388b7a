"""Stop rules: which rows are finished although masks may be left.

A stop rule is called with the rows after a pass and returns which of them are finished (B,). A row ends by itself when
no mask is left, so a stop rule only ends rows early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from voidpad.decode.rows import Rows
from voidpad.decode.rules import MOST_SLOTS, Rule


class StopRule(Rule):
    """Base of stop rules."""

    ends_early: ClassVar[bool] = True  # False if the rule never ends a row that has masks left

    def __call__(self, rows: Rows) -> Tensor:
        """The rows (B,) bool that are finished."""
        raise NotImplementedError


class Vanilla(StopRule):
    """No row ends early: decode until the canvas is full."""

    ends_early = False

    def __call__(self, rows: Rows) -> Tensor:
        return torch.zeros_like(rows.prompt, dtype=torch.bool)


class EosTermination(StopRule):
    """End a row once nothing before its leftmost EOS is masked: no later pass can change the answer."""

    def __call__(self, rows: Rows) -> Tensor:
        return terminated(rows, (rows.roles.eos,))


class EndsTermination(StopRule):
    """`EosTermination` for models that may end an answer with any of their stop ids (`roles.ends`)."""

    def __call__(self, rows: Rows) -> Tensor:
        return terminated(rows, rows.roles.ends)


class AfterBlock(StopRule):
    """`EndsTermination`, but a block that was begun is finished first. Blocks count from position 0 of the row."""

    block: int = Field(default=32, ge=1, le=MOST_SLOTS, description="size of the blocks")

    def __call__(self, rows: Rows) -> Tensor:
        full = (rows.first_mask % self.block == 0) | (rows.first_mask == rows.stop)
        is_left = rows.block_start == rows.first_mask  # before that, the full block may still be edited
        return terminated(rows, rows.roles.ends) & full & is_left


def terminated(rows: Rows, ends: Sequence[int]) -> Tensor:
    """Rows (B,) in which one of these tokens stands and nothing before the leftmost of them is masked."""
    end = rows.first_of(ends)
    return (end < rows.stop) & (rows.first_mask > end)
