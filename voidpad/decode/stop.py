"""Stopping rules: which rows are finished although masks may be left."""

from collections.abc import Callable

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas, first

Stop = Callable[[Canvas], Tensor]  # -> (B,) bool


def vanilla(canvas: Canvas) -> Tensor:
    """Never early: decode until the canvas is full."""
    return torch.zeros(len(canvas), dtype=torch.bool)


def eos_termination(canvas: Canvas) -> Tensor:
    """Finished once nothing before the leftmost EOS is masked: no later pass can change the answer."""
    eos = canvas.first_eos
    return (eos < canvas.stop) & (first(canvas.masked, otherwise=canvas.stop) > eos)
