"""The oracle length model: the exact posterior over answers of random words whose length has a known distribution.

Each word is uniform over a few symbols, and the rest of the canvas is padding. The oracle shows what decoding does
with a model that has learnt its data perfectly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from studies.theory.theorems import LengthModel
from voidpad.decode.loop import decode
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows
from voidpad.roles import Roles
from voidpad.training.padding import PaddingPolicy, pad
from voidpad.training.prepared import Example

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(2, 9)))
WORD = 9  # the first symbol
LETTERS = {ROLES.mask: ".", ROLES.eos: "E", ROLES.void: "V"} | dict(
    zip(ROLES.rainbow[1:], "123456", strict=True)
)


@dataclass(frozen=True)
class LengthOracle:
    """The exact posterior as a Denoiser; the prompt does not matter."""

    lengths: LengthModel
    padding: PaddingPolicy
    canvas: int
    symbols: int = 10

    @cached_property
    def answers(self) -> Tensor:
        """(K, L) one padded answer for each length; WORD stands for every symbol."""
        rows = [Example([WORD], [WORD] * length) for length, _ in self.lengths.weights]
        return pad(rows, self.padding.name, ROLES, width=torch.full((len(rows),), 1 + self.canvas)).ids[:, 1:]

    @cached_property
    def chance(self) -> Tensor:
        weights = torch.tensor([float(weight) for _, weight in self.lengths.weights], dtype=torch.double)
        return weights / weights.sum()

    def __call__(self, canvas: Rows, where: Tensor) -> Tensor:
        rows = []
        for row in range(len(canvas)):
            begin, stop = int(canvas.prompt[row]), int(canvas.stop[row])
            p = self.posterior(canvas.ids[row, begin:stop])
            rows.append(p[where[row, begin:stop]])
        return torch.cat(rows).clamp(min=1e-30).log()

    def posterior(self, seen: Tensor) -> Tensor:
        """Token probabilities (L, V) given the visible slots of one canvas; the prior where nothing fits."""
        answers = self.answers[:, : len(seen)]
        word = answers == WORD
        fits = ((seen == ROLES.mask) | (seen == answers) | (word & (seen >= WORD))).all(1)
        belief = self.chance * (fits if fits.any() else torch.ones_like(fits))
        belief = (belief / belief.sum())[:, None].expand(answers.shape)
        p = torch.zeros(len(seen), WORD + self.symbols, dtype=torch.double)
        p.scatter_add_(1, answers.T, torch.where(word, 0, belief).T)
        p[:, WORD:] = torch.where(word, belief, 0).sum(0)[:, None] / self.symbols
        return p


@dataclass(frozen=True)
class OracleDecode:
    """One decode of the oracle: what was written when, and what came out."""

    commits: tuple[tuple[int, str, float], ...]  # (slot from 1, token, score) in order
    canvas: str  # one letter a slot: c a word, E, V, 1-6 the other colours, . never written
    length: int  # words before the first EOS
    passes: int


def decode_oracle(oracle: LengthOracle, plan: Plan) -> OracleDecode:
    """Decode one canvas; `plan` must start with the oracle's canvas."""
    commits: list[tuple[int, str, float]] = []
    for step in decode(oracle, [[WORD]], ROLES, plan):
        start = int(step.before.prompt[0])
        commits += [(start + slot, _letter(token), score) for slot, token, score in step.written(0)]
        for outcome in step.finished.values():
            text = "".join(_letter(token) for token in outcome.ids)
            cut = text.find("E")
            return OracleDecode(tuple(commits), text, cut if cut >= 0 else len(text), outcome.passes_decode)
    raise AssertionError("a decode ends")


def _letter(token: int) -> str:
    return LETTERS.get(token, "c")
