"""Stop rules: which rows are finished although masks may be left.

A stop rule is called with the canvas after a pass and returns which rows are finished (B,). A row ends by itself
when no mask is left, so a stop rule only ends rows early.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas, first

Stop = Callable[[Canvas], Tensor]  # -> (B,) bool


def vanilla(canvas: Canvas) -> Tensor:
    """No row ends early (all False): decode until the canvas is full."""
    return torch.zeros(len(canvas), dtype=torch.bool)


def eos_termination(canvas: Canvas) -> Tensor:
    """End a row once nothing before its leftmost EOS is masked: no later pass can change the answer."""
    return terminated(canvas, (canvas.roles.eos,))


def ends_termination(canvas: Canvas) -> Tensor:
    """`eos_termination` for models that may end an answer with any of their stop ids (`roles.ends`)."""
    return terminated(canvas, canvas.roles.ends)


@dataclass(frozen=True)
class BetweenBlocks:
    """`ends_termination`, but a block that was begun is finished first. Blocks count from position 0 of the row."""

    block: int

    def __call__(self, canvas: Canvas) -> Tensor:
        ahead = first(canvas.masked, otherwise=canvas.stop)
        return ends_termination(canvas) & ((ahead % self.block == 0) | (ahead == canvas.stop))


def terminated(canvas: Canvas, ends: Sequence[int]) -> Tensor:
    """Rows (B,) in which one of these tokens stands and nothing before the leftmost of them is masked."""
    end = canvas.first_of(ends)
    return (end < canvas.stop) & (first(canvas.masked, otherwise=canvas.stop) > end)


STOPS: dict[str, Stop] = {"vanilla": vanilla, "eos": eos_termination}
