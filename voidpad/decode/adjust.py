"""Adjust rules: what is added to a few logits of each slot before a token is proposed and scored.

An adjust rule is called with the rows, the frontier (B, L) and the logits (N, V) of its N slots. It returns token ids
(N, K) and the numbers (N, K) to add to their logits, and the rows, in whose canvas it may have changed the memory.
A token id of -1 stands for no token. Everything else about decoding sees the logits as the network gave them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voidpad.decode.fields import DecodingRule, setting
from voidpad.decode.rows import Rows

Additions = tuple[Tensor, Tensor]  # token ids (N, K) and what to add to their logits (N, K)
Adjust = Callable[[Rows, Tensor, Tensor], tuple[Additions, Rows]]


def constant(masked: Tensor) -> Tensor:
    """The same penalty throughout."""
    return torch.ones_like(masked)


def linear(masked: Tensor) -> Tensor:
    """A penalty proportional to the share of the canvas that is masked."""
    return masked


def dream_coder(masked: Tensor, eps: float = 1e-3) -> Tensor:
    """Dream-Coder's penalty: nearly a ban while the canvas is empty, nothing once it is full. Spec rivals 3.2."""
    return -torch.log(1 - masked + eps)


ANNEALINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": constant,
    "linear": linear,
    "dream-coder": dream_coder,
}


@dataclass(frozen=True)
class EosPenalty(DecodingRule):
    """Lower the logit of EOS, in a measure that may depend on how much of the row's canvas is masked."""

    eos_penalty: float = setting(3.0, at_least=0, help="taken off the logit of EOS before tokens are chosen")
    eos_annealing: Callable[[Tensor], Tensor] = setting(
        dream_coder, choices=ANNEALINGS, help="constant, linear or dream-coder: how the penalty fades"
    )

    switch = "eos_penalty"
    approximation = None

    def __call__(self, rows: Rows, frontier: Tensor, logits: Tensor) -> tuple[Additions, Rows]:
        canvas = rows.canvas
        masked = canvas.masked.sum(1).double() / canvas.length.clamp(min=1)
        penalty = (-self.eos_penalty * self.eos_annealing(masked))[frontier.nonzero()[:, 0], None]
        return (torch.full_like(penalty, canvas.roles.eos, dtype=torch.long), penalty), rows


@dataclass(frozen=True)
class Credit(DecodingRule):
    """CreditDecoding: tokens that a slot has predicted in earlier passes of its block gain on the others.

    In each pass all credits of a slot decay, the most probable token earns p ** credit_power, and the logit of every
    token with credit C rises by credit * log(1 + C). Banned tokens earn credit too: that keeps a slot that predicts
    VOID unsure. Spec rivals 1.3.
    """

    credit: float = setting(
        0.7, at_least=0, help="CreditDecoding: weight of earlier predictions; needs threshold"
    )
    credit_power: float = setting(0.2, at_least=0, help="a prediction of probability p earns p to this power")
    credit_decay: float = setting(0.8, at_least=0, at_most=1, help="share of a credit kept in the next pass")

    switch = approximation = "credit"

    def __call__(self, rows: Rows, frontier: Tensor, logits: Tensor) -> tuple[Additions, Rows]:
        known = rows.canvas.memory[frontier]  # (N, K, 2)
        token, chance = _favourites(logits)
        tokens, credits = known[:, :, 0].long(), self.credit_decay * known[:, :, 1]
        if not (tokens < 0).any(1).all():  # room for one more token in every slot
            tokens = torch.nn.functional.pad(tokens, (0, 1), value=-1)
            credits = torch.nn.functional.pad(credits, (0, 1))
        mine = tokens == token[:, None]
        at = torch.where(mine.any(1), mine.int().argmax(1), (tokens < 0).int().argmax(1))[:, None]
        tokens = tokens.scatter(1, at, token[:, None])
        credits = credits.scatter_add(1, at, (chance**self.credit_power)[:, None])
        canvas = rows.canvas.remember(frontier, torch.stack([tokens.double(), credits], 2))
        return (tokens, self.credit * torch.log1p(credits)), replace(rows, canvas=canvas)


def _favourites(logits: Tensor) -> Additions:
    """The most probable token of each slot (N,), the smallest id among equals, and its probability, on the host."""
    size = max(1, (1 << 25) // logits.shape[1])  # pieces whose float64 copy takes at most 256 MB
    parts = []
    for part in logits.split(size):
        z = part.double()
        token = z.argmax(1)
        chance = (z.gather(1, token[:, None])[:, 0] - z.logsumexp(1)).exp()
        parts.append(torch.stack([token.double(), chance]))
    tokens, chances = torch.cat(parts, 1).cpu()
    return tokens.long(), chances
