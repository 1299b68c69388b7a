"""Log-probabilities of tokens in the pass that committed them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from voidpad.decode.loop import Step


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability, from the raw softmax: bans and temperature are not in it."""

    id: int
    logprob: float
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
