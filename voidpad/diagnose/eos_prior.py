"""The prior that padding teaches: what one pass over an empty canvas predicts, beside what the padded data hold.

For every slot i: F(i - 1), p_i(e) and q_i(e) (paper, observation 2). `void_tail` says whether a model knows VOID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from voidpad.decode.loop import Denoiser
from voidpad.decode.rows import Rows
from voidpad.roles import Roles
from voidpad.training.padding import batch_width
from voidpad.training.prepared import Pairs

LEAST = 100  # examples a slot needs before its gap counts
NEVER = 1 << 40  # stands for the length of an answer that was cut: no slot is its end
PIECE = 2048  # slots whose softmax is taken at a time, because the vocabulary of a large model is wide


@dataclass(frozen=True)
class CanvasReading:
    """What one pass predicts, by row and canvas slot. Rows shorter than the longest end in zeros."""

    eos: Tensor  # (B, L) P(EOS)
    void: Tensor | None  # (B, L) P(VOID), if there is such a token
    best: Tensor  # (B, L) the likeliest token that is not MASK


def read_canvas(denoise: Denoiser, canvas: Rows) -> CanvasReading:
    """One pass over whole canvases, full softmax, nothing banned."""
    roles, sizes, pieces = canvas.roles, canvas.length.tolist(), []
    for logits in denoise(canvas, canvas.slots).split(PIECE):
        p = (logits if logits.dtype == torch.float64 else logits.float()).softmax(-1)
        chances = p[:, [roles.eos, roles.eos if roles.void is None else roles.void]]
        p[:, roles.mask] = -1
        pieces.append((*chances.unbind(1), p.argmax(-1)))
    whole = [torch.cat(values).cpu() for values in zip(*pieces, strict=True)]
    eos, void, best = (pad_sequence(list(values.split(sizes)), batch_first=True) for values in whole)
    return CanvasReading(eos, None if roles.void is None else void, best)


def batches_of(sizes: Sequence[int], tokens: int) -> Iterator[list[int]]:
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
    for rows in batches_of([len(prompt) + canvas for prompt in prompts], 4096):
        blank = Rows.blank([prompts[row] for row in rows], canvas, roles)
        seen = read_canvas(denoise, blank).void
        assert seen is not None
        tails.append(seen[:, -min(window, canvas) :].double().mean(1))
    return float(torch.cat(tails).mean())


@dataclass(frozen=True)
class Curves:
    """One token's curves over the slots 1..S; NaN where no example reaches."""

    token: str  # "eos" or "void"
    cdf: Tensor  # (S,) F(i - 1); for VOID F(i - 2)
    target: Tensor  # (S,) p_i: share of padded answers that hold the token at slot i
    model: Tensor  # (S,) q_i: mean probability on the empty canvas
    count: Tensor  # (S,) examples whose padded answer reaches slot i

    def gap(self, one: str, other: str, *, least: int = LEAST) -> tuple[float, float]:
        """Mean and largest distance of two curves over the slots with at least so many examples."""
        apart = (getattr(self, one) - getattr(self, other)).abs()[self.count >= least]
        return (float(apart.mean()), float(apart.max())) if len(apart) else (torch.nan, torch.nan)


@dataclass(frozen=True)
class PaddedAnswers:
    """The examples of a data set and how many slots each padded answer has."""

    pairs: Pairs
    room: Tensor  # (N,) slots of the padded answer, L_{B,k}

    @classmethod
    def of(cls, pairs: Pairs, width: Tensor) -> PaddedAnswers:
        """Rows, prompts included, of these widths. An answer that was cut has no EOS and no padding behind it."""
        end = torch.where(pairs.complete, width, torch.minimum(width, pairs.size))
        return cls(pairs, end - pairs.prompt.long())


def shuffled(count: int, size: int, *, seed: int = 0) -> list[Tensor]:
    """Shuffled example numbers in mini-batches of `size`."""
    return list(torch.randperm(count, generator=torch.Generator().manual_seed(seed)).split(size))


def batched(pairs: Pairs, batches: Iterable[Tensor]) -> PaddedAnswers:
    """Each mini-batch padded to its own width."""
    width = torch.empty(len(pairs), dtype=torch.long)
    for rows in batches:
        width[rows] = batch_width(pairs.size[rows])
    return PaddedAnswers.of(pairs, width)


def same_canvas(pairs: Pairs, canvas: int) -> PaddedAnswers:
    """Every answer padded, or cut, to the same number of slots."""
    return PaddedAnswers.of(pairs, pairs.prompt.long() + canvas)


def shares(data: PaddedAnswers, *, late: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """F(i - 1 - late), p_i and the counts; `late` is 0 for EOS and 1 for VOID, which starts a slot later."""
    slots = int(data.room.max())
    length = torch.where(data.pairs.complete, data.pairs.response.long(), NEVER)
    begin = length + 1 + late  # the first slot that holds the token
    holding = begin <= data.room
    at = torch.bincount(begin.clamp(max=slots + 1), minlength=slots + 2).cumsum(0)[1 : slots + 1]
    count = torch.bincount(data.room, minlength=slots + 1).flip(0).cumsum(0).flip(0)[1:]
    ended = torch.bincount(data.room[holding] + 1, minlength=slots + 2).cumsum(0)[1 : slots + 1]
    holders = torch.bincount(begin[holding], minlength=slots + 2).cumsum(0)[1 : slots + 1] - ended
    return at.double() / len(data.pairs), holders.double() / count, count


def measure(
    denoise: Denoiser,
    roles: Roles,
    data: PaddedAnswers,
    *,
    tokens: int = 4096,
    tick: Callable[[], None] = lambda: None,
) -> list[Curves]:
    """The curves of EOS, and of VOID if there is such a token: one pass for each example."""
    sums = torch.zeros(2, int(data.room.max()), dtype=torch.double)
    prompt, room = data.pairs.prompt.long(), data.room
    for rows in batches_of((prompt + room).tolist(), tokens):
        prompts = [data.pairs.spans(row)[0][1] for row in rows]
        seen = read_canvas(denoise, Rows.blank(prompts, room[rows], roles))  # whole padded answers masked
        inside = torch.arange(seen.eos.shape[1]) < room[rows][:, None]
        for place, p in enumerate((seen.eos, seen.void)):
            if p is not None:
                sums[place, : p.shape[1]] += torch.where(inside, p.double(), 0).sum(0)
        for _ in rows:
            tick()
    found = []
    for late, token in enumerate(("eos",) if roles.void is None else ("eos", "void")):
        cdf, target, count = shares(data, late=late)
        found.append(Curves(token, cdf, target, sums[late] / count, count))
    return found
