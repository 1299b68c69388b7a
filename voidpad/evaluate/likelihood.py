"""Log-likelihood of a text by the masked-diffusion bound, estimated by Monte Carlo.

For a continuation of n tokens, draw how many to hide (uniform on 1..n, spread evenly over the samples), hide
that many at random, and weigh the log-probabilities of the hidden tokens by n / hidden. The mean over the
samples is an unbiased estimate of a lower bound of log p(continuation | context) (Nie et al. 2025, LLaDA).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from voidpad.decode.loop import Denoiser
from voidpad.decode.rows import Rows
from voidpad.engine.batching import Engine
from voidpad.errors import ConfigError
from voidpad.models import Model
from voidpad.models.text import raw_ids
from voidpad.roles import Roles

Pair = tuple[list[int], list[int]]  # context and continuation, as ids


@dataclass(frozen=True)
class Bound:
    """`samples` passes a continuation; `tokens` bounds one forward pass."""

    model: Model
    samples: int = 128
    seed: int = 0
    tokens: int = 16384
    greedy: bool = True

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"mc_samples={self.samples} must be at least 1")

    def pairs(self, texts: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """For each context and continuation: the bound, and whether greedy decoding writes the latter.

        A context that is too long loses its beginning.
        """
        self.model.require_full_attention("the masked bound of a log-likelihood")
        pairs = []
        for context, continuation in [self._split(*text) for text in texts]:
            room = self.model.context - len(continuation)
            if not continuation or room < 1:
                size = len(continuation)
                raise ConfigError(
                    f"continuation of {size} tokens: it must have 1 to {self.model.context - 1}"
                )
            pairs.append((context[-room:], continuation))
        greedy = self._greedy(pairs) if self.greedy else [False] * len(pairs)
        return list(zip(map(self._estimate, pairs), greedy, strict=True))

    def texts(self, texts: Sequence[str]) -> list[float]:
        """Whole texts, in windows as long as the context allows; every token counts once."""
        self.model.require_full_attention("the masked bound of a log-likelihood")
        sums = []
        for text in texts:
            ids = raw_ids(self.model.tokenizer, text)
            windows = get_rolling_token_windows(ids, self._first(), self.model.context - 1, 1)
            sums.append(sum(self._estimate(make_disjoint_window(window)) for window in windows))
        return sums

    def _split(self, context: str, continuation: str) -> Pair:
        """Tokens of both parts as they fall in the joined text; spaces between belong to the second."""
        bare = context.rstrip()
        ids = raw_ids(self.model.tokenizer, context + continuation)
        start = len(raw_ids(self.model.tokenizer, bare)) if bare else 0
        return ids[:start] or [self._first()], ids[start:]

    def _first(self) -> int:
        """What stands before a text that has nothing before it."""
        bos = self.model.tokenizer.bos_token_id
        return self.model.roles.eos if bos is None else bos

    def _estimate(self, pair: Pair) -> float:
        """The hidden positions depend on the seed and the pair alone, not on its neighbours."""
        digest = hashlib.sha256(repr((self.seed, *pair)).encode()).digest()
        rng = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        hidden = hide(len(pair[1]), self.samples, rng)
        return estimate(self.model.denoiser(), self.model.roles, pair, hidden, tokens=self.tokens)

    def _greedy(self, pairs: Sequence[Pair]) -> list[bool]:
        """One token a pass on a canvas of the continuation's length."""
        engine = Engine(self.model.denoiser(), self.model.roles, tokens=self.tokens)
        for key, (context, continuation) in enumerate(pairs):
            size = len(continuation)
            plan = self.model.plan("original", canvas=size, block=size, steps=size, cut=False)
            engine.submit(context, plan, key=key)
        written = {outcome.key: outcome.ids for _, outcome in engine.outcomes()}
        return [written[key] == continuation for key, (_, continuation) in enumerate(pairs)]


def hide(size: int, samples: int, rng: torch.Generator) -> Tensor:
    """(samples, size) bool: a uniform number of hidden positions in each row, spread evenly over the rows."""
    first = int(torch.randint(size, (), generator=rng))
    counts = (first + torch.arange(samples) * size // samples) % size + 1
    order = torch.rand(samples, size, generator=rng).argsort(1).argsort(1)
    return order < counts[:, None]


def estimate(denoise: Denoiser, roles: Roles, pair: Pair, hidden: Tensor, *, tokens: int) -> float:
    """The mean over the rows of `hidden` (samples, size)."""
    context, continuation = pair
    size, width = len(continuation), len(context) + len(continuation)
    ids, truth = torch.tensor(context + continuation), torch.tensor(continuation)
    total = 0.0
    for part in hidden.split(max(1, tokens // width)):
        where = torch.nn.functional.pad(part, (len(context), 0))
        prompt, stop = (torch.full((len(part),), place) for place in (len(context), width))
        canvas = Rows.of(ids.repeat(len(part), 1).masked_fill(where, roles.mask), prompt, stop, roles)
        logits = denoise(canvas, where).double().log_softmax(-1)
        row, slot = part.nonzero(as_tuple=True)
        weight = size / part.sum(1)[row].double()
        found = logits.gather(1, truth[slot].to(logits.device)[:, None])[:, 0]
        total += float((found.cpu() * weight).sum())
    return total / len(hidden)
