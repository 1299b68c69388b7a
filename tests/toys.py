"""Toy denoisers: small pure functions of one row, as `logits(ids)` and, wrapped in `Toy`, as a Denoiser.

They are written so that answers end, tails turn into padding and canvases grow and shrink within a few slots.
A prompt ends at the first separator token, which no toy ever proposes, so a toy can tell slots from prompt.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from voidpad.roles import Roles

VOCAB = 14
LOW = Roles(mask=0, eos=1, void=2, rainbow=(2, 3, 4))  # role ids before the words
HIGH = Roles(mask=13, eos=11, void=10, rainbow=(10, 9, 8))  # and after them
SEPARATOR = {LOW: 13, HIGH: 0}


def words(roles: Roles) -> list[int]:
    """Ids that mean something."""
    taken = {roles.mask, roles.eos, roles.void, *roles.rainbow, SEPARATOR[roles]}
    return [v for v in range(VOCAB) if v not in taken]


def field_of(shape: tuple[int, ...], *key: int) -> np.ndarray:
    """Uniform numbers in [0, 1) that are a hash of `key`, the same on every machine."""
    state = np.uint64(zlib.crc32(np.asarray(key, dtype=np.int64).tobytes()))
    with np.errstate(over="ignore"):
        z = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = z + state * np.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        z = (z ^ (z >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        z = z ^ (z >> np.uint64(32))
    return ((z >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)


@dataclass(frozen=True)
class Chaos:
    """Every logit is a hash of the whole row; `lean` pulls some ids up, `scale` makes it peaky."""

    roles: Roles
    seed: int
    scale: float = 3.0
    lean: tuple[tuple[int, float], ...] = ()

    def __call__(self, ids: Sequence[int]) -> Tensor:
        z = self.scale * field_of((len(ids), VOCAB), self.seed, *ids)
        for token, amount in self.lean:
            z[:, token] += amount
        z[:, SEPARATOR[self.roles]] = -np.inf
        return torch.from_numpy(z)


@dataclass(frozen=True)
class Twins:
    """Few different logit rows with few different values: ties between slots and between tokens everywhere."""

    roles: Roles
    seed: int
    kinds: int = 3

    def __call__(self, ids: Sequence[int]) -> Tensor:
        rows = np.floor(4 * field_of((self.kinds, VOCAB), self.seed, sum(t == self.roles.mask for t in ids)))
        rows[:, SEPARATOR[self.roles]] = -np.inf
        pick = np.floor(self.kinds * field_of((len(ids),), self.seed + 1, *ids)).astype(int)
        return torch.from_numpy(rows[pick])


@dataclass(frozen=True)
class World:
    """Answers of a few possible lengths, padded by one of the three schemes; beliefs follow what is visible."""

    roles: Roles
    seed: int
    padding: str = "void"  # or "eos", "rainbow"
    lengths: tuple[int, ...] = (2, 5, 9, 14)
    doubt: float = 0.02  # mass spread over the whole vocabulary
    jitter: float = 0.3  # row-dependent noise on the logits
    firm: float = 3.0  # how sure of the words

    def __call__(self, ids: Sequence[int]) -> Tensor:
        ids = list(ids)
        prompt = ids.index(SEPARATOR[self.roles]) + 1
        answer = np.array(ids[prompt:])
        kinds = self.emission(len(answer))  # (lengths, slots, V)
        belief = np.log(0.05 + field_of((len(self.lengths),), self.seed, *ids[:prompt]))
        seen = answer != self.roles.mask
        told = np.take_along_axis(kinds, answer[None, :, None], 2)[:, :, 0]  # (lengths, slots)
        belief = belief + np.where(seen[None], np.log(np.maximum(told, 0.02)), 0.0).sum(1)
        belief = np.exp(belief - belief.max())
        p = np.tensordot(belief / belief.sum(), kinds, 1)
        p = (1 - self.doubt) * p + self.doubt / VOCAB
        z = np.full((len(ids), VOCAB), -1.0)
        z[prompt:] = np.log(p) + self.jitter * field_of(p.shape, self.seed + 1, *ids)
        z[:, SEPARATOR[self.roles]] = -np.inf
        return torch.from_numpy(z)

    def emission(self, slots: int) -> np.ndarray:
        """Token probabilities of each slot for each possible length."""
        vocabulary = words(self.roles)
        said = np.exp(self.firm * field_of((slots, len(vocabulary)), self.seed + 2))
        content = np.zeros((slots, VOCAB))
        content[:, vocabulary] = said / said.sum(1, keepdims=True)
        out = np.stack([content] * len(self.lengths))
        for k, length in enumerate(self.lengths):
            for slot in range(length, slots):
                out[k, slot] = 0.0
                out[k, slot, self.roles.eos if slot == length else self.pad(slot - length - 1)] = 1.0
        return out

    def pad(self, index: int) -> int:
        if self.padding == "rainbow":
            return self.roles.rainbow[index % len(self.roles.rainbow)]
        return self.roles.void if self.padding == "void" else self.roles.eos


@dataclass(frozen=True)
class MaskLover:
    """Prefers MASK at a share of the slots; which slots changes with the row, or never (`forever`)."""

    inner: Callable[[Sequence[int]], Tensor]
    roles: Roles
    seed: int
    share: float = 0.5
    forever: bool = False

    def __call__(self, ids: Sequence[int]) -> Tensor:
        z = self.inner(ids).clone()
        context = (len(ids),) if self.forever else tuple(ids)
        loved = field_of((len(ids),), self.seed, *context) < self.share
        z[torch.from_numpy(loved), self.roles.mask] = 9.0
        return z


@dataclass(frozen=True)
class Oracle:
    """The exact posterior of specification 8.6 behind a prompt of one token."""

    padding: str  # "eos", "void" or "rainbow"
    roles: Roles = LOW
    lengths: tuple[tuple[int, float], ...] = ((1, 0.35), (2, 0.25), (5, 0.40))
    symbols: tuple[int, ...] = tuple(range(20, 30))

    def __call__(self, ids: Sequence[int]) -> Tensor:
        answer = list(ids)[1:]
        possible = [(length, chance) for length, chance in self.lengths if self.fits(answer, length)]
        total = sum(chance for _, chance in possible)
        p = torch.zeros(len(ids), 30, dtype=torch.float64)
        for slot in range(1, len(answer) + 1):
            for length, chance in possible:
                for token, share in self.tokens(slot, length):
                    p[slot, token] += chance / total * share
        return p.clamp(min=1e-30).log()

    def tokens(self, slot: int, length: int) -> list[tuple[int, float]]:
        if slot <= length:
            return [(symbol, 1 / len(self.symbols)) for symbol in self.symbols]
        if slot == length + 1 or self.padding == "eos":
            return [(self.roles.eos, 1.0)]
        rainbow = self.roles.rainbow
        return [
            (self.roles.void if self.padding == "void" else rainbow[(slot - length - 2) % len(rainbow)], 1.0)
        ]

    def fits(self, answer: Sequence[int], length: int) -> bool:
        return all(
            token == self.roles.mask or any(token == t for t, _ in self.tokens(slot, length))
            for slot, token in enumerate(answer, start=1)
        )


@dataclass(frozen=True)
class Table:
    """Scripted probabilities: `rows(canvas)` gives, for every slot, a map from token to probability."""

    rows: Callable[[list[int]], list[dict[int, float]]]
    vocab: int = 16
    prompt: int = 1

    def __call__(self, ids: Sequence[int]) -> Tensor:
        p = torch.zeros(len(ids), self.vocab, dtype=torch.float64)
        for slot, row in enumerate(self.rows(list(ids)[self.prompt :])):
            for token, chance in row.items():
                p[self.prompt + slot, token] = chance
        return p.log()


def spread(chosen: dict[int, float], over: Sequence[int]) -> dict[int, float]:
    """The given probabilities, and what is missing to 1 shared by `over`."""
    rest = (1 - sum(chosen.values())) / len(over)
    return {**dict.fromkeys(over, rest), **chosen}


@dataclass(frozen=True)
class Toy:
    """A toy as a Denoiser: row by row the same floats, and counts of the calls and of the slots of each row."""

    logits: Callable[[list[int]], Tensor]
    calls: Counter = field(default_factory=Counter, compare=False)
    slots: Counter = field(default_factory=Counter, compare=False)

    def __call__(self, canvas, where: Tensor) -> Tensor:
        assert not (where & ~canvas.inside).any(), "logits were asked for outside a row"
        parts = []
        for row, key in enumerate(canvas.key.tolist()):
            self.calls[key] += 1
            self.slots[key] += int(canvas.stop[row] - canvas.prompt[row])
            ids = canvas.ids[row, : int(canvas.stop[row])].tolist()
            parts.append(self.logits(ids)[where[row, : len(ids)]])
        return torch.cat(parts)
