"""Forward noising (spec 1.3): which slots are hidden, and with what probability that happens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from voidpad.decode.noise import absorb, shift_right
from voidpad.training.padding import Batch

LEVEL, KIND, WIDTH = 1, 2, 3  # names of the numbers that a row draws once, hashed with its key
GOLDEN_STEP = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class NoisedBatch:
    """A batch with some of its slots masked, and the probability with which that happened."""

    ids: Tensor  # (B, S): the batch with hidden slots replaced by MASK
    hidden: Tensor  # (B, S) bool: loss slots
    rate: Tensor  # (B,): probability with which a slot of the row was hidden
    forced: bool = False  # every semantic EOS was hidden with probability 1 instead


@dataclass(frozen=True)
class Noising:
    """Settings of the noise. Draws are keyed by (seed, epoch, example), never by batch, process or restart."""

    seed: int = 42
    eps: float = 1e-3
    stratified: bool = False  # noise levels spread evenly over consecutive rows
    suffix: float = 0.0  # share of rows whose right end is hidden in one piece: the states decoding visits

    def key(self, epoch: Tensor, example: Tensor) -> Tensor:
        """The hash (B,) int64 from which all draws of these rows are derived."""
        return absorb(absorb(torch.full_like(example, self.seed), epoch), example)

    def level(self, at: At) -> Tensor:
        """The noise level t of each row. Stratified levels step by the golden ratio through the epoch's order, so that
        consecutive rows cover [0, 1) evenly, whatever the batch size."""
        if not self.stratified:
            return draw(self.key(at.epoch, at.example), LEVEL)
        offset = draw(self.key(at.epoch, torch.zeros_like(at.example)), LEVEL)
        return (offset + at.position.double() * GOLDEN_STEP) % 1.0

    def __call__(self, batch: Batch, mask: int, *, forced: bool, at: At) -> NoisedBatch:
        """Hide slots of `batch` for the rows `at`; `forced` hides every semantic EOS with weight 1 (VOID)."""
        rate = rates(self.level(at), self.eps)
        key = self.key(at.epoch, at.example)
        draws = _uniform(key, batch.ids.shape[1])
        if self.suffix:
            chosen = draw(key, KIND) < self.suffix
            draws = torch.where(chosen[:, None], from_the_right(batch.target), draws)
        return corrupt(batch, mask, rate=rate, draws=draws, forced=forced)


@dataclass(frozen=True)
class At:
    """Which rows of the data a batch holds, and where in the run they stand. All (B,) int64."""

    epoch: Tensor
    example: Tensor
    position: Tensor  # in the epoch's order

    def to(self, device: torch.device | str) -> At:
        return At(*(part.to(device, non_blocking=True) for part in vars(self).values()))


def rates(level: Tensor, eps: float = 1e-3) -> Tensor:
    """p = (1 - eps) t + eps, in float32."""
    return ((1 - eps) * level + eps).float()


def draw(key: Tensor, what: int) -> Tensor:
    """One float64 number in (0, 1) per row."""
    return (shift_right(absorb(key, torch.full_like(key, what)), 11).double() + 0.5) * 2.0**-53


def _uniform(key: Tensor, slots: int) -> Tensor:
    """(B, slots) float32 numbers in [0, 1] from one 64-bit key per row.

    A row's slots are a counter hashed in 32 bits with murmur3's constants, the key mixed in twice: a quarter of
    the memory traffic of a 64-bit hash per slot, on which building a batch spent most of its time. The last shift of
    the usual finaliser is left out, because it changes only low bits that the float does not keep.
    """
    low, high = (part.to(torch.int32)[:, None] for part in (key, key >> 32))
    # -1640531527 is 2 ** 32 divided by the golden ratio, as a signed 32-bit number.
    z = low + torch.arange(slots, dtype=torch.int32, device=key.device) * -1640531527
    z.bitwise_xor_((z >> 16).bitwise_and_(0xFFFF)).mul_(-2048144789)
    z.bitwise_xor_((z >> 13).bitwise_and_(0x7FFFF)).bitwise_xor_(high).mul_(-1028477387)
    return z.float().mul_(2.0**-32).add_(0.5)


def from_the_right(target: Tensor) -> Tensor:
    """Draws that hide a suffix: a target slot with k target slots to its right and n in all gets (k + 1/2) / n."""
    count = target.sum(1, keepdim=True).clamp(min=1)
    return (count - target.cumsum(1) + 0.5) / count


def corrupt(batch: Batch, mask: int, *, rate: Tensor, draws: Tensor, forced: bool) -> NoisedBatch:
    """Hide the target slots whose draw is below the row's rate (B,); a forced EOS is hidden with probability 1."""
    hidden = batch.target & (draws < rate[:, None])
    if forced:
        hidden |= batch.eos
    return NoisedBatch(batch.ids.masked_fill(hidden, mask), hidden, rate, forced)
