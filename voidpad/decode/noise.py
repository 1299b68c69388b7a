"""Counter-based randomness: a draw is a hash of seed, row key, pass and slot, so it does not depend on the batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from voidpad.decode.rows import send

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # splitmix64's constants, as signed 64-bit integers
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


def shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 tensors."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch's >> keeps the sign; a hash must not


def _mix(z: Tensor) -> Tensor:
    """The splitmix64 finaliser on int64 tensors; arithmetic wraps."""
    z = (z ^ shift_right(z, 30)) * MIX_1
    z = (z ^ shift_right(z, 27)) * MIX_2
    return z ^ shift_right(z, 31)


def absorb(state: Tensor, part: Tensor) -> Tensor:
    """The hash state after one more number has been mixed in."""
    return _mix(state + GOLDEN * (part + 1))


@dataclass(frozen=True)
class Noise:
    """Random draws for N slots, each identified by (seed, row key, pass, slot). Nothing is hashed before a draw."""

    parts: tuple[Tensor, ...]  # seed, key, pass and slot, (N,) int64 each
    device: torch.device
    greedy: Tensor | None = None  # (N,) bool, slots whose token is never drawn at random

    @property
    def state(self) -> Tensor:
        """The hash (N,) of seed, key, pass and slot, on the device."""
        state, *parts = (send(part, self.device) for part in self.parts)
        for part in parts:
            state = absorb(state, part)
        return state  # (N,)

    def split(self, size: int) -> list[Noise]:
        """The same draws in pieces of at most `size` slots."""
        pieces = zip(*(part.split(size) for part in self.parts), strict=True)
        greedy = repeat(None) if self.greedy is None else self.greedy.split(size)
        return [Noise(parts, self.device, part) for parts, part in zip(pieces, greedy, strict=False)]

    def select(self, slots: Tensor) -> Noise:
        """The draws of these slots alone: a mask (N,) or indices."""
        parts = tuple(part[slots] for part in self.parts)
        return Noise(parts, self.device, None if self.greedy is None else self.greedy[slots])

    def per_slot(self) -> Tensor:
        """One uniform number in (0, 1) for each slot."""
        state = self.state
        return self._uniform(absorb(state, torch.zeros_like(state)))  # (N,)

    def per_path(self) -> Tensor:
        """One uniform number in (0, 1) for each slot, to draw the text of a constraint by. It is independent of
        `per_slot` and `per_token`, which mix in 0 and the numbers from 1 on where this mixes in -1."""
        return self._uniform(absorb(self.state, torch.full_like(self.state, -1)))  # (N,)

    def per_token(self, vocab: int) -> Tensor:
        """One uniform number in (0, 1) for each slot and token."""
        state = self.state
        tokens = torch.arange(1, vocab + 1, device=state.device)
        return self._uniform(absorb(state[:, None], tokens[None]))  # (N, V)

    def gumbel(self, vocab: int) -> Tensor:
        """One Gumbel draw for each slot and token (N, V); 0 at the slots that are greedy."""
        drawn = -self.per_token(vocab).log().neg().log()
        return (
            drawn if self.greedy is None else drawn.masked_fill(send(self.greedy, self.device)[:, None], 0.0)
        )

    @staticmethod
    def _uniform(bits: Tensor) -> Tensor:
        return (shift_right(bits, 11).double() + 0.5) * 2.0**-53  # in (0, 1)
