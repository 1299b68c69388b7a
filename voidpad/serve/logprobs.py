"""Log-probabilities: of tokens in the pass that committed them, and of the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from voidpad.decode.loop import Step
from voidpad.decode.rows import Rows

if TYPE_CHECKING:
    from voidpad.models import Model


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability, from the raw softmax: bans and temperature are not in it."""

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()  # the likeliest ids with their log-probabilities


UNKNOWN = TokenLogprob(-1, 0.0)  # a slot that the length rule filled: no pass chose its token


def _read(logits: Tensor, tokens: Tensor, top: int) -> list[TokenLogprob]:
    """Each token with the likeliest ones in its place, from logits (N, V) and ids (N,)."""
    scores = logits.float().log_softmax(-1)
    best = scores.topk(min(max(1, top), scores.shape[1]))
    own = scores.gather(1, tokens.to(scores.device)[:, None])[:, 0]
    return [
        TokenLogprob(token, value, tuple(zip(ids, values, strict=True)))
        for token, value, ids, values in zip(
            tokens.tolist(), own.tolist(), best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]


class SlotLogprobs:
    """One row's log-probabilities by slot; they move with their tokens when the canvas changes length."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.slots: list[TokenLogprob] = []

    def take(self, slots: Iterable[int]) -> list[TokenLogprob]:
        """Those of these slots."""
        return [self.slots[slot] if slot < len(self.slots) else UNKNOWN for slot in slots]

    def add(self, step: Step, row: int) -> None:
        """Read the tokens that this pass wrote."""
        self.slots += [UNKNOWN] * (int(step.before.length[row]) - len(self.slots))
        if written := step.written(row):
            slots, tokens, _ = zip(*written, strict=True)
            found = _read(step.logits_at(row, slots), torch.tensor(tokens), self.top)
            for slot, one in zip(slots, found, strict=True):
                self.slots[slot] = one
        for kind, at, count, _ in step.edits_of(row):
            if kind == "cut":
                del self.slots[at : at + count]
            else:
                self.slots[at:at] = [UNKNOWN] * count


def prompt_passes(
    model: Model, ids: Sequence[int], *, top: int, more: int, tokens: int
) -> Iterator[partial[list[TokenLogprob]]]:
    """Passes that together give the log-probability of each token given those before it, all later ones masked.

    This is the chain rule from left to right, so the sum over any end of the text is its log-probability given the
    rest. The first token has nothing before it and is left out. With `more`, the last pass adds the likeliest token
    after the text. One pass reads at most `tokens` tokens.
    """
    size = max(1, tokens // len(ids))
    ends = list(range(1, len(ids) + more))
    for start in range(0, len(ends), size):
        yield partial(_score, model, list(ids), ends[start : start + size], top)


@torch.inference_mode()
def _score(model: Model, ids: list[int], ends: list[int], top: int) -> list[TokenLogprob]:
    lengths = torch.tensor([max(1, len(ids) - end) for end in ends])
    canvas = Rows.blank([ids[:end] for end in ends], lengths, model.roles)
    where = torch.zeros_like(canvas.ids, dtype=torch.bool)
    where[torch.arange(len(ends)), torch.tensor(ends)] = True
    logits = model.default_denoiser()(canvas, where)
    tokens = torch.tensor([*ids, model.roles.mask])[torch.tensor(ends)]
    if ends[-1] == len(ids):
        last = logits[-1].clone()
        last[model.roles.mask] = -torch.inf  # never written
        tokens[-1] = int(last.argmax())
    return _read(logits, tokens, top)
