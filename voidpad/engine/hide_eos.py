"""Attention masks that hide committed EOS tokens: the intervention of the paper's third observation.

Each function is a `forbid` of the Hugging Face denoiser: it says which query must not attend to which key.
"""

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas


def hidden_eos(canvas: Canvas) -> Tensor:
    """Masked slots (queries) must not see EOS (keys), once one is committed; (B, L, L)."""
    return canvas.masked[:, :, None] & _eos_keys(canvas)[:, None, :]


def hidden_eos_from_all(canvas: Canvas) -> Tensor:
    """No other token may see an EOS, once one is committed. An EOS keeps itself, so every query has a key."""
    itself = torch.eye(canvas.ids.shape[1], dtype=torch.bool)
    return _eos_keys(canvas)[:, None, :] & ~itself


def _eos_keys(canvas: Canvas) -> Tensor:
    """Every EOS of the row, prompt included, in the rows whose canvas holds one (B, L)."""
    eos = canvas.inside & (canvas.ids == canvas.roles.eos)
    return eos & (eos & canvas.slots).any(1, keepdim=True)
