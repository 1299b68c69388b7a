"""Proposal rules: for every slot of the frontier, the token to write there and a score that says how sure it is.

A proposal rule is called with logits (N, V), the banned and muted ids, and a source of noise; it returns tokens
(N,) and scores (N,). N slots of many rows come together, and a large vocabulary may be split into several calls.

Two sets of token ids shape a proposal. A banned token is never chosen. A muted token is left out of the
distribution that gives the scores. With nothing muted, a banned token keeps its probability mass, so a slot
where the model wants VOID scores low and is written last (LLaDA's way). With the banned tokens muted, the
other probabilities are renormalised (Dream's way).

Entropy and margin describe a distribution and not the token that is written. Where the most probable token cannot be
written, a slot would look certain by them; such slots come after all others (the ban guard, spec rivals 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from voidpad.decode.canvas import send
from voidpad.decode.commit import UNSURE
from voidpad.decode.fields import DecodingRule, setting
from voidpad.decode.noise import Noise

Score = Callable[[Tensor, Tensor, Noise], Tensor]  # (probabilities (N, V), tokens (N,), noise) -> (N,)
NOTHING = -1  # the token of a slot at which every token is banned


def confidence(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    """The probability of the proposed token; 0 where every token is banned."""
    return _chance(p, tokens)


def neg_entropy(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    """Minus the entropy of the distribution: high where the model is sure, whatever token is proposed."""
    return (p * (p + 1e-10).log()).sum(1)


def margin(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    """The probability of the best token minus that of the second best."""
    best = p.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def random(p: Tensor, tokens: Tensor, noise: Noise) -> Tensor:
    """A score drawn for each slot, so that slots are written in random order."""
    return noise.per_slot()


SCORES: dict[str, Score] = {f.__name__: f for f in (confidence, neg_entropy, margin, random)}
_GUARDED = (neg_entropy, margin)  # scores that do not look at the proposed token


@dataclass(frozen=True)
class _Proposed:
    """Tokens (N,) and the distribution (N, V) by which they are scored."""

    tokens: Tensor
    p: Tensor
    greedy: Tensor  # (N,) what would be chosen at temperature 0

    @cached_property
    def misleads(self) -> Tensor:
        """Slots (N,) where the distribution says nothing about the token: its mode cannot be written there."""
        best = _chance(self.p, self.greedy)
        return (best < self.p.max(1).values) | (_chance(self.p, self.tokens) == 0)

    def scored(self, score: Score, noise: Noise) -> Tensor:
        """The scores (N,); slots that mislead a guarded score come last, by the probability of their token."""
        value = score(self.p, self.tokens, noise)
        if score not in _GUARDED:
            return value
        return torch.where(self.misleads, _chance(self.p, self.tokens) - UNSURE, value)

    def entropy(self, p: Tensor) -> Tensor:
        """The entropy (N,) of the distribution p that was sampled, in nats; infinite where it misleads."""
        each: Tensor = torch.special.entr(p)
        return each.sum(1).masked_fill(self.misleads, torch.inf)


def _score(default: Score) -> Any:
    return setting(
        default, choices=SCORES, help="what ranks the slots: confidence, neg_entropy, margin or random"
    )


def _temperature() -> Any:
    return setting(0.0, at_least=0, help="how random the choice of tokens is (0 takes the most probable)")


def _mask_proposable() -> Any:
    return setting(False, authors=True, help="let MASK be proposed, as the authors' code does")


@dataclass(frozen=True)
class Bans:
    """A plan's banned and muted tokens as ids of one checkpoint's vocabulary."""

    ban: tuple[int, ...]
    mute: tuple[int, ...]
    mask: int


@dataclass(frozen=True)
class GumbelProposal(DecodingRule):
    """LLaDA's proposal: Gumbel noise, scaled by the temperature, moves the choice; the score is free of noise.

    With `mask_proposable`, MASK may be chosen; a slot in which MASK is committed stays masked.
    """

    score: Score = _score(confidence)
    temperature: float = _temperature()
    mask_proposable: bool = _mask_proposable()

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor]:
        proposed = self._proposed(logits.double(), bans, noise)
        return proposed.tokens, proposed.scored(self.score, noise)

    def with_entropy(self, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the entropy (N,) of the distribution from which the token was drawn."""
        z = logits.double()
        proposed = self._proposed(z, bans, noise)
        sampled = softmax(without(z, bans.mute) / self.temperature) if self.temperature else proposed.p
        return proposed.tokens, proposed.scored(self.score, noise), proposed.entropy(sampled)

    def _proposed(self, z: Tensor, bans: Bans, noise: Noise) -> _Proposed:
        ban = _choice_ban(bans, self.mask_proposable)
        tokens = greedy = pick(without(z, ban))
        if self.temperature:
            wish = z - self.temperature * noise.per_token(z.shape[1]).log().neg().log()
            tokens = pick(without(wish, ban))
        return _Proposed(tokens, softmax(without(z, bans.mute)), greedy)


@dataclass(frozen=True)
class SampledProposal(DecodingRule):
    """Dream's proposal: temperature, top-k and top-p shape one distribution, which gives both token and score.

    top-k and top-p count only tokens that may be chosen. A token they remove is left out of the scores too.
    """

    score: Score = _score(neg_entropy)
    temperature: float = _temperature()
    mask_proposable: bool = _mask_proposable()
    top_p: float = setting(1.0, above=0, at_most=1, help="nucleus filter, for temperature > 0 (1 is off)")
    top_k: int = setting(0, at_least=0, help="top-k filter, for temperature > 0 (0 is off)")

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor]:
        proposed = self._proposed(logits, bans, noise)
        return proposed.tokens, proposed.scored(self.score, noise)

    def with_entropy(self, logits: Tensor, bans: Bans, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the entropy (N,) of the distribution from which the token was drawn."""
        proposed = self._proposed(logits, bans, noise)
        return proposed.tokens, proposed.scored(self.score, noise), proposed.entropy(proposed.p)

    def _proposed(self, logits: Tensor, bans: Bans, noise: Noise) -> _Proposed:
        z = logits.double() / (self.temperature or 1.0)
        ban = _choice_ban(bans, self.mask_proposable)
        dropped = self._dropped(without(z, ban)) if self.temperature else None
        if dropped is not None:
            z = z.masked_fill(dropped, -torch.inf)
        wish = without(z, ban)
        tokens = greedy = pick(wish)
        if self.temperature:
            tokens = pick(wish - noise.per_token(z.shape[1]).log().neg().log())
        return _Proposed(tokens, softmax(without(z, bans.mute)), greedy)

    def _dropped(self, allowed: Tensor) -> Tensor | None:
        """Tokens (N, V) that top-k, then top-p, remove. Banned tokens are not among them: they are out already."""
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
    """The proposal of DAEDAL and rho-EOS: a slot whose best token is MASK is written only when no other slot is left.

    Such a slot gets its best token other than MASK and a score below zero, which no threshold reaches; among
    such slots the score orders by the probability with MASK left out.
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


Propose = Callable[[Tensor, Bans, Noise], tuple[Tensor, Tensor]]
"""A proposal rule may also have a method `with_entropy`, which returns a third tensor: the entropy (N,), in nats, of
each slot's distribution, infinite where the most probable token cannot be written. Some commit rules need it."""
PROPOSALS = (GumbelProposal, SampledProposal)  # among which a model family chooses


def propose_in_pieces(
    rule: Callable[[Tensor, Bans, Noise], tuple[Tensor, ...]],
    logits: Tensor,
    bans: Bans,
    noise: Noise,
    additions: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Apply a proposal rule to slots in pieces whose float64 logits take at most 256 MB; returns host tensors.

    `additions` are token ids (N, K), -1 for none, and what is added to their logits before (N, K), on the host.
    """
    size = max(1, (1 << 25) // logits.shape[1])
    parts = []
    for at, (z, draws) in enumerate(zip(logits.split(size), noise.split(size), strict=True)):
        if additions is not None:
            ids, more = (send(part[at * size : (at + 1) * size], z.device) for part in additions)
            z = z.double().scatter_add(1, ids.clamp(min=0), more.masked_fill(ids < 0, 0.0))
        tokens, *numbers = rule(z, bans, draws)
        parts.append(torch.stack([tokens.double(), *numbers]))
    on_host = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).cpu()  # one copy, one wait
    return on_host[0].long(), *on_host[1:]


def _choice_ban(bans: Bans, mask_proposable: bool) -> tuple[int, ...]:
    """The ids that may not be chosen: the plan's, and MASK unless it may be proposed."""
    return bans.ban if mask_proposable else (*bans.ban, bans.mask)


def without(z: Tensor, ids: Sequence[int]) -> Tensor:
    """Logits (N, V) with these ids at minus infinity."""
    return z.index_fill(1, index(tuple(ids), z.device), -torch.inf) if ids else z


@lru_cache(256)
def index(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Token ids as a tensor on the device, cached: each transfer would make the host wait for the device."""
    with torch.inference_mode(False):  # for callers that differentiate, too
        return torch.tensor(ids, device=device)


def _chance(p: Tensor, tokens: Tensor) -> Tensor:
    """The probability of one token of each slot (N,); 0 where the token is NOTHING."""
    return torch.where(tokens == NOTHING, 0, p.gather(1, tokens.clamp(min=0)[:, None])[:, 0])


def pick(z: Tensor) -> Tensor:
    """The best token of each slot (N,), the smallest id among equals; NOTHING where every token is banned."""
    return torch.where(z.max(1).values == -torch.inf, NOTHING, z.argmax(1))


def softmax(z: Tensor) -> Tensor:
    """Softmax over the vocabulary; a slot where every logit is minus infinity gets probability 0 everywhere."""
    return torch.nan_to_num(z.softmax(1), nan=0.0)
