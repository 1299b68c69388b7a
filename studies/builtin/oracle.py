"""A perfect model of one prompt's answers: what decoding does when nothing is left to learn.

It answers with frequencies over many drawn answers that agree with what is on the canvas. Where it overflows under
EOS padding and not under VOID padding, the effect lies in the data's lengths and the padding, not in training.
"""

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from voidpad.builtin.problems import Problem
from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.builtin.tokenizer import ROLES, tokenizer, wrap
from voidpad.decode.rows import Rows
from voidpad.training.padding import pad
from voidpad.training.prepared import Example


@dataclass(frozen=True)
class Oracle:
    """A Denoiser for rows that all carry the one prompt. A canvas shorter than an answer shows its beginning."""

    prompt: tuple[int, ...]
    rows: Tensor  # (N, CANVAS) padded answers
    words: int

    def __call__(self, canvas: Rows, where: Tensor) -> Tensor:
        found = []
        for row in range(len(canvas)):
            begin, stop = int(canvas.prompt[row]), int(canvas.stop[row])
            slots = (where[row, begin:stop]).nonzero()[:, 0]
            found.append(self._frequencies(canvas.ids[row, begin:stop])[slots])
        return torch.cat(found).clamp(min=1e-30).log()

    def _frequencies(self, seen: Tensor) -> Tensor:
        """Token frequencies at every slot (L, V) among the answers that agree with what is visible."""
        answers = self.rows[:, : len(seen)]
        agree = ((answers == seen) | (seen == ROLES.mask)).all(1)
        kept = answers[agree] if agree.any() else answers
        counts = torch.zeros(len(seen), self.words)
        counts.scatter_add_(1, kept.T, torch.ones(kept.T.shape))
        return counts / len(kept)


def oracle(problem: Problem, policy: str, *, draws: int = 2000, seed: int = 0) -> Oracle:
    """An oracle from this many drawn answers; those that fill the canvas are left out, as in training."""
    rng, words = Random(seed), tokenizer()
    answer = TASKS[problem.task].answer
    encoded = words.backend_tokenizer.encode_batch([answer(problem, rng) for _ in range(draws)])
    rows = [Example([], e.ids) for e in encoded if len(e.ids) < CANVAS]
    batch = pad(rows, policy, ROLES, width=torch.full((len(rows),), CANVAS))
    return Oracle(tuple(words(wrap(problem.prompt)).input_ids), batch.ids, len(words))
