"""One forward pass over canvases: the probability of EOS and of VOID at every slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from voidpad.decode.canvas import Canvas
from voidpad.decode.loop import Denoiser
from voidpad.roles import Roles

PIECE = 2048  # slots whose softmax is taken at a time, because the vocabulary of a large model is wide


@dataclass(frozen=True)
class Seen:
    """What one pass predicts, by row and canvas slot. Rows shorter than the longest end in zeros."""

    eos: Tensor  # (B, L) P(EOS)
    void: Tensor | None  # (B, L) P(VOID), if there is such a token
    best: Tensor  # (B, L) the likeliest token that is not MASK


def look(denoise: Denoiser, canvas: Canvas) -> Seen:
    """One pass over whole canvases, full softmax, nothing banned."""
    logits = denoise(canvas, canvas.slots)
    parts = [_read(piece, canvas.roles) for piece in logits.split(PIECE)]
    eos, void, best = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    sizes = canvas.length.tolist()
    rows = [pad_sequence(list(values.split(sizes)), batch_first=True) for values in (eos, void, best)]
    return Seen(rows[0], None if canvas.roles.void is None else rows[1], rows[2])


def _read(logits: Tensor, roles: Roles) -> tuple[Tensor, Tensor, Tensor]:
    p = (logits if logits.dtype == torch.float64 else logits.float()).softmax(-1)
    void = p[:, roles.eos if roles.void is None else roles.void].clone()
    eos = p[:, roles.eos].clone()
    p[:, roles.mask] = -1
    return eos, void, p.argmax(-1)


def groups(sizes: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Batches of rows of similar size with at most `tokens` slots, padding included; a larger row is a batch alone."""
    batch: list[int] = []
    for row in sorted(range(len(sizes)), key=lambda row: sizes[row]):
        if batch and sizes[row] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def void_tail(
    denoise: Denoiser, roles: Roles, prompts: Sequence[Sequence[int]], *, canvas: int, window: int = 16
) -> float | None:
    """Mean P(VOID) at the last slots of empty canvases; None without a VOID token.

    A model trained with VOID padding predicts VOID at the tail of a canvas that is long enough. Above 1/2, VOID is
    likelier there than all other tokens together, and the signal can be used to choose a length.
    """
    if roles.void is None or not prompts:
        return None
    tails = []
    for rows in groups([len(prompt) + canvas for prompt in prompts], 4096):
        blank = Canvas.blank([prompts[row] for row in rows], canvas, roles, rows)
        seen = look(denoise, blank).void
        assert seen is not None
        tails.append(seen[:, -min(window, canvas) :].double().mean(1))
    return float(torch.cat(tails).mean())
