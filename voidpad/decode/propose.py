"""Proposal rules: for every slot of the frontier, the token to write there and a score that says how sure it is.

A proposal rule is called with logits (N, V) and what else is known about the N slots; it returns N tokens, scores and,
if asked, entropies. Slots of many rows come together, and many slots come in several calls (tiles), so a rule treats
each slot by itself. (Only a constraint ties the slots of a row together; see `constrained.py`.)

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
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from voidpad.decode.commit import COMES_LAST
from voidpad.decode.noise import Noise
from voidpad.decode.rules import Rule, is_on

NOTHING = -1  # in place of a token: every token is banned at the slot, or the slot is not on the frontier
TILE = 1 << 25  # numbers of float64 logits that a proposal looks at together: 256 MB


@dataclass(frozen=True)
class Bans:
    """A plan's banned and muted tokens as masks (V,) over a vocabulary, on the device of the logits."""

    ban: Tensor  # what the plan never writes
    choice: Tensor  # what may not be chosen: that and MASK
    mute: Tensor | None  # what is left out of the scores; None for nothing
    mask: int

    @classmethod
    def of(cls, ban: Sequence[int], mute: Sequence[int], mask: int, vocab: int, device: torch.device) -> Bans:
        muted = marked(tuple(mute), vocab, device) if mute else None
        return cls(marked(tuple(ban), vocab, device), marked((*ban, mask), vocab, device), muted, mask)


@dataclass(frozen=True)
class SlotProposal:
    """What a proposal rule says about N slots."""

    tokens: Tensor  # (N,) int64; NOTHING where every token is banned
    score: Tensor  # (N,) float64
    # (N,) float64 in nats; infinite where the most probable token cannot be written.
    entropy: Tensor | None = None

    def stacked(self) -> Tensor:
        """Tokens, scores and, if there are any, entropies as one tensor (2 or 3, N) of numbers."""
        numbers = [self.tokens.double(), self.score]
        return torch.stack(numbers if self.entropy is None else [*numbers, self.entropy])

    @classmethod
    def cat(cls, parts: Sequence[SlotProposal]) -> SlotProposal:
        """The proposals of several groups of slots as one."""
        entropies = [part.entropy for part in parts if part.entropy is not None]
        tokens, score = torch.cat([part.tokens for part in parts]), torch.cat([part.score for part in parts])
        return cls(tokens, score, torch.cat(entropies) if entropies else None)


class ProposeRule(Rule):
    """Base of proposal rules."""

    gives_entropy: ClassVar[bool] = False  # whether the rule can return entropies
    # Whether MASK may be chosen; its slot then stays masked (authors' code).
    proposes_mask: ClassVar[bool] = False

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise, *, entropy: bool = False) -> SlotProposal:
        """Tokens and scores of N slots from their logits (N, V); with `entropy`, their entropies too."""
        raise NotImplementedError

    def choice_ban(self, bans: Bans) -> Tensor:
        """The tokens (V,) that may not be chosen: the plan's, and MASK unless the rule may propose it."""
        return bans.ban if self.proposes_mask else bans.choice


# -------------------------------------------------------------------------------------------- scores
@dataclass(frozen=True)
class Scored:
    """Tokens (N,) and the distribution (N, V) by which they are scored."""

    tokens: Tensor
    p: Tensor
    greedy: Tensor  # (N,) what would be chosen at temperature 0

    @property
    def misleads(self) -> Tensor:
        """Slots (N,) where the distribution says nothing about the token: its most probable one is banned there."""
        best = chance(self.p, self.greedy)
        return (best < self.p.amax(1)) | (chance(self.p, self.tokens) == 0)

    def score(self, name: str, noise: Noise) -> Tensor:
        """The scores (N,); slots that mislead entropy and margin come last, by the probability of their token."""
        if name == "confidence":
            return chance(self.p, self.tokens)
        if name == "random":
            return noise.per_slot()
        value = neg_entropy(self.p) if name == "neg_entropy" else margin(self.p)
        return torch.where(self.misleads, chance(self.p, self.tokens) - COMES_LAST, value)

    def entropy(self, p: Tensor) -> Tensor:
        """The entropy (N,) of the distribution p that was sampled, in nats; infinite where it misleads."""
        each: Tensor = torch.special.entr(p)
        return each.sum(1).masked_fill(self.misleads, torch.inf)


def neg_entropy(p: Tensor) -> Tensor:
    """Minus the entropy of the distribution: high where the model is sure, whatever token is proposed."""
    return (p * (p + 1e-10).log()).sum(1)  # Dream's 1e-10 (spec 2.4)


def margin(p: Tensor) -> Tensor:
    """The probability of the best token minus that of the second best."""
    best = p.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


ScoreName = Literal["confidence", "neg_entropy", "margin", "random"]
_SCORE = "what ranks the slots: confidence, neg_entropy, margin or random"


class Sampler(ProposeRule):
    """Base of rules that draw a token at some temperature and score it by one of the four scores."""

    gives_entropy = True

    score: ScoreName = Field(default="confidence", description=_SCORE)
    temperature: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="how random the choice of tokens is (0 takes the most probable)",
    )


class GumbelProposal(Sampler):
    """LLaDA's proposal: Gumbel noise, scaled by the temperature, moves the choice; the score is free of noise."""

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise, *, entropy: bool = False) -> SlotProposal:
        z, ban = logits.double(), self.choice_ban(bans)
        tokens = greedy = pick(without(z, ban))
        if is_on(self.temperature):
            tokens = pick(without(z + self.temperature * noise.gumbel(z.shape[1]), ban))
        muted = without(z, bans.mute)
        scored = Scored(tokens, softmax(muted), greedy)
        value = scored.score(self.score, noise)
        if not entropy:
            return SlotProposal(tokens, value)
        sampled = softmax(muted / divisor(self.temperature)) if is_on(self.temperature) else scored.p
        return SlotProposal(tokens, value, scored.entropy(sampled))


class TemperedProposal(Sampler):
    """SDAR's proposal: the distribution at the given temperature gives both the token and its score."""

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise, *, entropy: bool = False) -> SlotProposal:
        ban = self.choice_ban(bans)
        z = self.filtered(logits.double() / divisor(self.temperature), ban)
        wish = without(z, ban)
        tokens = greedy = pick(wish)
        if is_on(self.temperature):
            drawn = pick(wish + noise.gumbel(z.shape[1]))
            tokens = drawn if isinstance(self.temperature, float) else self._drawn(drawn, greedy)
        scored = Scored(tokens, softmax(without(z, bans.mute)), greedy)
        value = scored.score(self.score, noise)
        return SlotProposal(tokens, value, scored.entropy(scored.p) if entropy else None)

    def _drawn(self, drawn: Tensor, greedy: Tensor) -> Tensor:
        """The drawn tokens (N,); the greedy ones at slots whose temperature is 0."""
        return torch.where(torch.as_tensor(self.temperature).reshape(-1) == 0, greedy, drawn)

    def filtered(self, z: Tensor, ban: Tensor) -> Tensor:
        """The logits (N, V) after the filters of the rule, if it has any."""
        return z


class SampledProposal(TemperedProposal):
    """Dream's proposal: temperature, top-p and top-k shape one distribution, which gives both token and score.

    The filters hold at every temperature, as in the published programs: at temperature 0 they change scores alone. They
    count only tokens that may be chosen. A token that they remove is left out of the scores too.
    """

    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus filter of the distribution (1 is off)")
    top_k: int = Field(default=0, ge=0, le=1 << 24, description="top-k filter, after top-p (0 is off)")

    def filtered(self, z: Tensor, ban: Tensor) -> Tensor:
        if not (isinstance(self.top_p, Tensor) or self.top_p < 1 or self.top_k):
            return z
        ordered, order = without(z, ban).sort(dim=1, descending=True, stable=True)
        rank = torch.arange(z.shape[1], device=z.device)[None]
        p = softmax(ordered)
        out = p.cumsum(1) - p >= self.top_p
        if self.top_k:
            out = out | (rank >= self.top_k)
        out = out & (rank > 0) & ordered.isfinite()
        return z.masked_fill(torch.zeros_like(out).scatter(1, order, out), -torch.inf)


class EosPenalty(Rule):
    """Lower the logit of EOS, in a measure that may depend on how much of the row's canvas is masked.

    It holds for choosing and scoring tokens; length rules see the logits as the network gave them. `dream-coder` is
    nearly a ban while the canvas is empty and nothing once it is full (spec rivals 3.2).
    """

    eos_penalty: float = Field(
        default=3.0, ge=0, le=1e6, description="taken off the logit of EOS before tokens are chosen"
    )
    eos_annealing: Literal["constant", "linear", "dream-coder"] = Field(
        default="dream-coder", description="constant, linear or dream-coder: how the penalty fades"
    )

    def __call__(self, masked: Tensor) -> Tensor:
        """The penalty (N,) for slots in rows of which this share (N,) is masked."""
        if self.eos_annealing == "constant":
            weight = torch.ones_like(masked)
        elif self.eos_annealing == "linear":
            weight = masked
        else:
            weight = -torch.log(1 - masked + 1e-3)
        return self.eos_penalty * weight


class MaskLast(ProposeRule):
    """The proposal of DAEDAL and rho-EOS: a slot whose best token is MASK is written only when no other slot is left.

    Such a slot gets its best token other than MASK and a score below zero, which no threshold reaches; among
    such slots the score orders by the probability with MASK left out.
    """

    def __call__(self, logits: Tensor, bans: Bans, noise: Noise, *, entropy: bool = False) -> SlotProposal:
        z = logits.double()
        tokens, words = pick(without(z, bans.ban)), pick(without(z, bans.choice))
        score = chance(softmax(z), tokens)
        late = chance(softmax(without(z, bans.choice & ~bans.ban)), words) - 2.0  # MASK alone is left out
        waits = tokens == bans.mask
        return SlotProposal(torch.where(waits, words, tokens), torch.where(waits, late, score))


def penalised(logits: Tensor, eos: int, penalty: Tensor | None) -> Tensor:
    """The logits (N, V) with the penalty (N,) taken off the end token's."""
    if penalty is None:
        return logits
    z = logits.double().clone()
    z[:, eos] -= penalty
    return z


def propose_in_tiles(
    rule: ProposeRule,
    logits: Tensor,
    bans: Bans,
    noise: Noise,
    *,
    entropy: bool,
    penalty: Tensor | None = None,
    eos: int = 0,
    call: Callable[..., SlotProposal] | None = None,
) -> SlotProposal:
    """What the rule proposes for N slots, in tiles whose float64 logits take at most 256 MB.

    `call(rule, logits, bans, noise, entropy)` replaces the rule's own call. Numbers of the rule that are tensors (N, 1)
    are cut into the same tiles.
    """
    size = max(1, TILE // logits.shape[1])
    found = []
    for number, draws in enumerate(noise.split(size)):
        part = slice(number * size, (number + 1) * size)
        numbers = {name: value[part] for name, value in vars(rule).items() if isinstance(value, Tensor)}
        own = rule.with_tensors(**numbers) if numbers else rule
        z = penalised(logits[part], eos, None if penalty is None else penalty[part])
        given = (z, bans, draws)
        found.append(own(*given, entropy=entropy) if call is None else call(own, *given, entropy))
    return found[0] if len(found) == 1 else SlotProposal.cat(found)


def divisor(temperature: float | Tensor) -> float | Tensor:
    """What logits are divided by at this temperature: 1 at temperature 0."""
    if isinstance(temperature, Tensor):
        return torch.where(temperature > 0, temperature, 1.0)
    return temperature or 1.0


def without(z: Tensor, tokens: Tensor | None) -> Tensor:
    """Logits (N, V) with minus infinity at the tokens that a mask (V,) marks."""
    # On a CPU much faster than masked_fill.
    return z if tokens is None else torch.where(tokens, -torch.inf, z)


@lru_cache(256)
def marked(ids: tuple[int, ...], vocab: int, device: torch.device) -> Tensor:
    """True at these ids, (V,), on the device; cached, because each transfer would make the host wait for it."""
    with torch.inference_mode(False):  # for callers that differentiate, too
        mask = torch.zeros(vocab, dtype=torch.bool)
        mask[list(ids)] = True
        return mask.to(device)


def chance(p: Tensor, tokens: Tensor) -> Tensor:
    """The probability of one token of each slot (N,); 0 where the token is NOTHING."""
    return torch.where(tokens == NOTHING, 0, p.gather(1, tokens.clamp(min=0)[:, None])[:, 0])


def pick(z: Tensor) -> Tensor:
    """The best token of each slot (N,), the smallest id among equals; NOTHING where every token is banned."""
    return torch.where(z.amax(1) == -torch.inf, NOTHING, z.argmax(1))


def softmax(z: Tensor) -> Tensor:
    """Softmax over the vocabulary; a slot where every logit is minus infinity gets probability 0 everywhere."""
    return torch.nan_to_num(z.softmax(1), nan=0.0)
