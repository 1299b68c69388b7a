"""Stop rules: which rows are finished although masks may be left.

A stop rule is called with the canvas after a pass and returns which rows are finished (B,). A row ends by itself
when no mask is left, so a stop rule only ends rows early.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas, first

Stop = Callable[[Canvas], Tensor]  # -> (B,) bool


def vanilla(canvas: Canvas) -> Tensor:
    """No row ends early (all False): decode until the canvas is full."""
    return torch.zeros(len(canvas), dtype=torch.bool)


def eos_termination(canvas: Canvas) -> Tensor:
    """End a row once nothing before its leftmost EOS is masked: no later pass can change the answer."""
    eos = canvas.first_eos
    return (eos < canvas.stop) & (first(canvas.masked, otherwise=canvas.stop) > eos)


STOPS: dict[str, Stop] = {"vanilla": vanilla, "eos": eos_termination}
