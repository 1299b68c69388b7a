"""Block rules: where the block that a row enters ends. Without one, every block has the plan's `block` slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from voidpad.decode.fields import DecodingRule, Names, declared, name_of, setting
from voidpad.decode.propose import confidence
from voidpad.decode.rows import Rows
from voidpad.errors import ConfigError

SHARE = 4  # a row that enters a block looks at one slot of so many of its canvas


@dataclass(frozen=True)
class DelimitedBlocks(DecodingRule):
    """AdaBlock: a block ends right after a delimiter that the model is about to write. Spec rivals 3.4.

    The first pass of a block looks at the next quarter of the canvas. Of the slots there that propose a delimiter, the
    surest one ends the block if it is sure enough; otherwise the block has the plan's `block` slots. The same pass
    commits tokens of the block.
    """

    delimiter_threshold: float = setting(
        0.3, at_least=0, at_most=1, help="AdaBlock: a delimiter at least this sure ends the block"
    )
    delimiters: Names = setting(
        ("newline",), help="roles or ids of the tokens that may end a block, separated by commas"
    )

    switch = "delimiter_threshold"

    def check(self, length: Any, commit: Any, propose: Any, *, causal: bool) -> None:
        """Refuse rules of a plan that do not go with blocks of unequal length."""
        given = f"delimiter_threshold={self.delimiter_threshold}"
        if causal:
            raise ConfigError(
                f"{given} has no meaning for block-causal attention, where no slot sees later blocks; drop it."
            )
        if not declared(length, "settles_first", False):
            raise ConfigError(
                f"{given} looks ahead on a canvas that keeps its length while it is decoded, and "
                f"length={name_of(length)} edits it; drop one of them."
            )
        if hasattr(commit, "steps"):
            raise ConfigError(
                f"{given} makes blocks of unequal length, over which commit={name_of(commit)} cannot spread its steps; "
                "set threshold, as 0.9."
            )
        if declared(propose, "score", confidence) is not confidence:
            raise ConfigError(f"{given} is compared with probabilities; use score=confidence.")

    def look(self, rows: Rows) -> Tensor:
        """The masked slots (B, L) among which rows that enter a block search for a delimiter."""
        canvas, start = rows.canvas, rows.open[:, None]
        reach = torch.div(canvas.length, SHARE, rounding_mode="floor")[:, None]
        near = (canvas.offset >= start) & (canvas.offset < start + reach)
        return canvas.masked & near & rows.enters[:, None]

    def __call__(
        self, rows: Rows, tokens: Tensor, score: Tensor, ready: Tensor, delimiters: Sequence[int], block: int
    ) -> Rows:
        """The rows with the size of the block that they enter, by the proposed tokens and their scores (B, L).

        Rows that are not ready (B,) write nothing in this pass, so they enter no block either.
        """
        assert rows.size is not None
        ends = self.look(rows) & torch.isin(tokens, torch.tensor(delimiters, dtype=torch.long))
        best, at = score.masked_fill(~ends, -torch.inf).max(1)  # among equals the leftmost
        usual = torch.minimum(torch.full_like(at, block), rows.canvas.stop - rows.open)
        size = torch.where(best >= self.delimiter_threshold, at + 1 - rows.open, usual)
        enters = rows.enters & ready
        entered = replace(rows, size=torch.where(enters, size, rows.size))
        return replace(entered, entry=torch.where(enters, entered.window(block).sum(1), rows.entry))
