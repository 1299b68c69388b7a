"""Forward noising (spec 1.3): which slots are hidden, and with what probability that happens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from voidpad.decode.noise import Noise
from voidpad.padding import Batch

LEVEL, KIND, WIDTH = -1, -2, -3  # slots no row has: the draws that belong to a row as a whole
GOLDEN_STEP = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Noised:
    ids: Tensor  # (B, S): the batch with hidden slots replaced by MASK
    hidden: Tensor  # (B, S) bool: loss slots
    rate: Tensor  # (B, S): probability with which the slot was hidden; only read where hidden


@dataclass(frozen=True)
class Noising:
    """Settings of the noise. Draws are keyed by (seed, epoch, example), never by batch, process or restart."""

    seed: int = 42
    eps: float = 1e-3
    stratified: bool = False  # noise levels spread evenly over consecutive rows
    suffix: float = 0.0  # share of rows whose right end is hidden in one piece: the states decoding visits

    def draw(self, epoch: Tensor, example: Tensor, slot: Tensor) -> Tensor:
        """Uniform numbers in (0, 1), one per element of the broadcast arguments."""
        seed = torch.full((), self.seed, device=example.device)
        return Noise((seed, epoch, example, slot), example.device).per_slot()

    def level(self, epoch: Tensor, example: Tensor, position: Tensor) -> Tensor:
        """t of each row. Stratified: a golden-ratio walk over the epoch's order, so that any run of consecutive
        rows covers [0, 1) evenly, whatever the batch size."""
        if not self.stratified:
            return self.draw(epoch, example, torch.full_like(example, LEVEL))
        offset = self.draw(epoch, torch.zeros_like(example), torch.full_like(example, LEVEL))
        return (offset + position * GOLDEN_STEP) % 1.0

    def __call__(self, batch: Batch, mask: int, *, forced: bool, at: At) -> Noised:
        """Hide slots of `batch` for the rows `at`; `forced` hides every semantic EOS with weight 1 (VOID)."""
        rate = rates(self.level(at.epoch, at.example, at.position), self.eps)
        slot = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
        draws = self.draw(at.epoch[:, None], at.example[:, None], slot)
        if self.suffix:
            chosen = self.draw(at.epoch, at.example, torch.full_like(at.example, KIND)) < self.suffix
            draws = torch.where(chosen[:, None], from_the_right(batch.target), draws)
        return corrupt(batch, mask, rate=rate, draws=draws, forced=forced)


@dataclass(frozen=True)
class At:
    """Which rows of the data a batch holds, and where in the run they stand. All (B,) int64."""

    epoch: Tensor
    example: Tensor
    position: Tensor  # in the epoch's order


def rates(level: Tensor, eps: float = 1e-3) -> Tensor:
    """p = (1 - eps) t + eps."""
    return (1 - eps) * level + eps


def from_the_right(target: Tensor) -> Tensor:
    """Draws that hide a suffix: a target slot with k target slots to its right and n in all gets (k + 1/2) / n."""
    count = target.sum(1, keepdim=True).clamp(min=1)
    return (count - target.cumsum(1) + 0.5) / count


def corrupt(batch: Batch, mask: int, *, rate: Tensor, draws: Tensor, forced: bool) -> Noised:
    """Hide the target slots whose draw is below the row's rate (B,); a forced EOS is hidden with probability 1."""
    hidden = batch.target & (draws < rate[:, None])
    rate = rate[:, None].expand(hidden.shape)
    if forced:
        hidden = hidden | batch.eos
        rate = torch.where(batch.eos, 1.0, rate)
    return Noised(torch.where(hidden, mask, batch.ids), hidden, rate)
