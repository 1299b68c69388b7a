"""Proposals: for every slot of the frontier, a token and how sure we are of it.

Two sets of ids shape a proposal. `ban` may not be chosen. `mute` leaves the distribution that is scored: with
nothing muted, a banned token keeps its mass in the denominator (LLaDA's way: a slot that wants VOID scores
low and is filled last); with the ban set muted, the rest is renormalised (Dream's way).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from voidpad.decode.noise import Noise

Score = Callable[[Tensor, Tensor, Noise], Tensor]  # (probabilities (N, V), tokens (N,), noise) -> (N,)
NOTHING = -1  # the token of a slot at which every token is banned


def confidence(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    return torch.where(tokens == NOTHING, 0, p.gather(1, tokens.clamp(min=0)[:, None])[:, 0])


def neg_entropy(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    return (p * (p + 1e-10).log()).sum(1)


def margin(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    best = p.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def random(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    return noise.per_slot()


@dataclass(frozen=True)
class Bans:
    """Token ids resolved for one checkpoint."""

    ban: tuple[int, ...]
    mute: tuple[int, ...]
    mask: int


@dataclass(frozen=True)
class Noised:
    """LLaDA's proposal: the choice may be noised, the score never is."""

    score: Score = confidence
    temperature: float = 0.0
    mask_proposable: bool = False  # parity with the authors' code: a committed MASK leaves its slot masked

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor]:
        z = logits.double()
        wish = z
        if self.temperature:
            wish = z - self.temperature * noise.per_token(z.shape[1]).log().neg().log()
        tokens = pick(without(wish, choice_ban(bans, self.mask_proposable)))
        return tokens, self.score(softmax(without(z, bans.mute)), tokens, noise)


@dataclass(frozen=True)
class Tempered:
    """Dream's proposal: temperature, top-k and top-p shape one distribution, which is sampled and scored.

    The filters look at the tokens that may be chosen; what they drop leaves the scored distribution too.
    """

    score: Score = neg_entropy
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    mask_proposable: bool = False

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor]:
        z = logits.double() / (self.temperature or 1.0)
        ban = choice_ban(bans, self.mask_proposable)
        dropped = self._dropped(without(z, ban)) if self.temperature else None
        if dropped is not None:
            z = z.masked_fill(dropped, -torch.inf)
        wish = without(z, ban)
        if self.temperature:
            wish = wish - noise.per_token(z.shape[1]).log().neg().log()
        tokens = pick(wish)
        return tokens, self.score(softmax(without(z, bans.mute)), tokens, noise)

    def _dropped(self, allowed: Tensor) -> Tensor | None:
        """Tokens that top-k, then top-p, take out; never a banned one, which is out of the choice already."""
        if not self.top_k and self.top_p >= 1:
            return None
        ordered, order = allowed.sort(dim=1, descending=True, stable=True)
        rank = torch.arange(allowed.shape[1], device=allowed.device)[None]
        out = rank >= (self.top_k or allowed.shape[1])
        p = softmax(ordered.masked_fill(out, -torch.inf))
        out = out | (p.cumsum(1) - p >= self.top_p)
        out = out & (rank > 0) & ordered.isfinite()
        return torch.zeros_like(out).scatter(1, order, out)


@dataclass(frozen=True)
class MaskLast:
    """DAEDAL's and rho-EOS's proposal: a slot whose best token is MASK waits until there is no other.

    Scores of such slots lie below zero, out of reach of any threshold, ordered by probability without MASK.
    """

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor]:
        z = logits.double()
        p = softmax(z)
        wish = without(z, bans.ban)
        tokens = pick(wish)
        words = pick(without(wish, (bans.mask,)))
        score = confidence(p, tokens, noise)
        late = confidence(softmax(without(z, (bans.mask,))), words, noise) - 2.0
        waits = tokens == bans.mask
        return torch.where(waits, words, tokens), torch.where(waits, late, score)


Propose = Noised | Tempered | MaskLast


def propose_in_pieces(rule: Propose, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor]:
    """Float64 copies of a vocabulary are big: work through the slots in pieces of at most 256 MB."""
    size = max(1, (1 << 25) // logits.shape[1])
    if len(logits) <= size:
        tokens, score = rule(logits, bans, noise)
    else:
        pairs = [rule(z, bans, n) for z, n in zip(logits.split(size), noise.split(size), strict=True)]
        tokens, score = (torch.cat(part) for part in zip(*pairs, strict=True))
    on_host = torch.stack([tokens.double(), score]).cpu()  # one copy, one wait
    return on_host[0].long(), on_host[1]


def choice_ban(bans: Bans, mask_proposable: bool) -> tuple[int, ...]:
    return bans.ban if mask_proposable else (*bans.ban, bans.mask)


def without(z: Tensor, ids: Sequence[int]) -> Tensor:
    return z.index_fill(1, index(tuple(ids), z.device), -torch.inf) if ids else z


@lru_cache(256)
def index(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept: sending ids to a device makes the host wait until the device is idle."""
    with torch.inference_mode(False):  # for callers that differentiate, too
        return torch.tensor(ids, device=device)


def pick(z: Tensor) -> Tensor:
    """The best token, the smallest id among equals; NOTHING where every token is banned."""
    return torch.where(z.max(1).values == -torch.inf, NOTHING, z.argmax(1))


def softmax(z: Tensor) -> Tensor:
    """Softmax in which a slot without any token left has probability 0 everywhere."""
    return torch.nan_to_num(z.softmax(1), nan=0.0)
