"""Noise and loss: which slots of a row are hidden (spec 1.3), and what the loss is at these slots (spec 1.4).

An `Objective` hides slots of a batch (`noise`) and gives its loss slots, each with a label and a weight (`loss_slots`).
`SlotLoss` is the network up to the cross entropies there; the loss is their weighted sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from voidpad.decode.noise import absorb, shift_right
from voidpad.training.padding import Batch

LEVEL, SUFFIX, WIDTH = 1, 2, 3  # names of the numbers that a row draws once, hashed with its key
GOLDEN_STEP = (math.sqrt(5) - 1) / 2
KINDS = ("response", "eos", "padding")  # of loss slots
EOS, PADDING = 1, 2  # places in KINDS
Normaliser = Literal["per_row", "per_slot"]


# Random numbers


@dataclass(frozen=True)
class Origin:
    """Which rows of the data a batch holds. What a row draws depends on this and the seed, on nothing else."""

    epoch: int
    example: Tensor  # (B,) int64
    position: Tensor  # (B,) int64, in the epoch's order

    def to(self, device: torch.device | str) -> Origin:
        example, position = (part.to(device, non_blocking=True) for part in (self.example, self.position))
        return Origin(self.epoch, example, position)


def row_key(seed: int, epoch: int, example: Tensor) -> Tensor:
    """The hash (B,) int64 from which all draws of these rows are derived."""
    return absorb(absorb(torch.full_like(example, seed), torch.full_like(example, epoch)), example)


def draw(key: Tensor, what: int) -> Tensor:
    """One float64 number in (0, 1) per row."""
    return (shift_right(absorb(key, torch.full_like(key, what)), 11).double() + 0.5) * 2.0**-53


def _draw_slots(key: Tensor, slots: int) -> Tensor:
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


# Noise and weights


@dataclass(frozen=True)
class NoisedBatch:
    """A batch with some of its slots masked, and the probability with which that happened."""

    ids: Tensor  # (B, S): the batch with hidden slots replaced by MASK
    hidden: Tensor  # (B, S) bool: loss slots
    rate: Tensor  # (B,): probability with which a slot of the row was hidden


@dataclass(frozen=True)
class Slots:
    """The loss slots of some rows: everything the loss needs, flat."""

    where: Tensor  # (N,) index into the flattened (B * S) rows
    label: Tensor  # (N,) clean ids
    weight: Tensor  # (N,) float32; the loss is the weighted sum of the cross entropies
    kind: Tensor  # (N,) uint8 place in KINDS


@dataclass(frozen=True)
class Objective:
    """What is learnt of a row: which of its slots are hidden, and how much the cross entropy at each of them weighs."""

    mask: int
    normaliser: Normaliser = "per_row"
    shift: int = 0  # 1 (Dream): the label at j is predicted by the output at j - 1
    forced: bool = False  # every semantic EOS is hidden and weighs 1 (VOID padding)
    seed: int = 42
    eps: float = 1e-3
    stratified: bool = False  # noise levels spread evenly over consecutive rows
    suffix: float = 0.0  # share of rows whose right end is hidden in one piece: the states decoding visits

    def level(self, rows: Origin) -> Tensor:
        """The noise level t of each row. Stratified levels step by the golden ratio through the epoch's order, so that
        consecutive rows cover [0, 1) evenly, whatever the batch size."""
        if not self.stratified:
            return draw(row_key(self.seed, rows.epoch, rows.example), LEVEL)
        offset = draw(row_key(self.seed, rows.epoch, torch.zeros_like(rows.example)), LEVEL)
        return (offset + rows.position.double() * GOLDEN_STEP) % 1.0

    def noise(self, batch: Batch, rows: Origin) -> NoisedBatch:
        """Hide slots of these rows."""
        key = row_key(self.seed, rows.epoch, rows.example)
        draws = _draw_slots(key, batch.ids.shape[1])
        if self.suffix:
            # A target slot with k target slots to its right, of n in all, gets (k + 1/2) / n: that hides a suffix.
            count = batch.target.sum(1, keepdim=True).clamp(min=1)
            from_the_right = (count - batch.target.cumsum(1) + 0.5) / count
            chosen = draw(key, SUFFIX) < self.suffix
            draws = torch.where(chosen[:, None], from_the_right, draws)
        return self.hide(batch, self.level(rows), draws)

    def hide(self, batch: Batch, level: Tensor, draws: Tensor) -> NoisedBatch:
        """Hide the target slots whose draw (B, S) is below p = (1 - eps) t + eps for their row's level t (B,)."""
        rate = ((1 - self.eps) * level + self.eps).float()
        hidden = batch.target & (draws < rate[:, None])
        if self.forced:
            hidden |= batch.eos
        return NoisedBatch(batch.ids.masked_fill(hidden, self.mask), hidden, rate)

    def loss_slots(self, batch: Batch, noised: NoisedBatch, mini_batch: Tensor | None = None) -> Slots:
        """Where the loss is taken, and with what weights.

        The loss is the mean over mini-batches, each counted by its rows. `mini_batch` (B,) numbers them below B;
        without it all rows are one.
        """
        hidden = noised.hidden
        if mini_batch is None:
            mini_batch = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        if self.shift:
            hidden = hidden & (torch.arange(hidden.shape[1], device=hidden.device) >= self.shift)
        where = hidden.flatten().nonzero()[:, 0]
        rows = where // hidden.shape[1]
        kind = (batch.eos.byte() * EOS + batch.padding.byte() * PADDING).flatten()[where]
        rate = noised.rate.double()[rows]
        if self.forced:
            rate = torch.where(kind == EOS, 1.0, rate)
        members = _members(mini_batch)
        # LLaDA divides a row's sum by all its target slots and takes the mean over rows; Dream divides the sum of the
        # mini-batch by its loss slots.
        if self.normaliser == "per_row":
            divisor = (batch.slots * members)[rows]
        else:
            divisor = _members(mini_batch[rows], most=len(mini_batch))
        weight = (members.double() / len(mini_batch))[rows] / (rate * divisor)
        return Slots(where - self.shift, batch.ids.flatten()[where], weight.float(), kind)


def _members(group: Tensor, most: int | None = None) -> Tensor:
    """For each element, how many are in its group. The device is not asked how many groups there are."""
    sizes = torch.zeros(len(group) if most is None else most, dtype=torch.long, device=group.device)
    return sizes.index_add_(0, group, torch.ones_like(group))[group]


# The network's part


@dataclass(frozen=True)
class Segments:
    """Where rows lie that were laid end to end in one sequence."""

    positions: Tensor  # (T,) of each token in its row
    bounds: Tensor  # (R + 1,) int32: where each row begins
    longest: int  # no row is longer


@dataclass(frozen=True)
class Pass:
    """What is computed at once, forward and backward: some rows of an update and their loss slots."""

    ids: Tensor  # (R, S) rows padded to the longest, or (1, T) rows end to end
    slots: Slots  # `where` is an index into the flattened ids
    tokens: int  # of the rows, without what fills up the pass
    inside: Tensor | None = None  # (R, S) bool: what attention sees; None: everything
    segments: Segments | None = None  # of rows end to end


class SlotLoss(nn.Module):
    """A language model as a function from rows and loss slots to the cross entropy at each slot, in float32.

    FSDP shards this module, so that the head is inside its forward. The head runs in pieces of at most
    `piece` logits, recomputed in the backward pass: with a vocabulary of 126k no other tensor is as large.
    """

    PIECE = 1 << 27  # logits

    def __init__(self, net: nn.Module, *, piece: int = PIECE) -> None:
        super().__init__()
        self.net: Any = net
        self.piece = piece

    def forward(
        self,
        ids: Tensor,
        where: Tensor,
        label: Tensor,
        inside: Tensor | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """The cross entropy (N,) of `label` at the slots `where` (N,) of the flattened `ids` (B, S).

        Attention sees the slots `inside` (B, S); rows that are laid end to end are told apart by `segments`.
        """
        # A PeftModel passes both calls on to the model inside.
        decoder, head = self.net.get_decoder(), self.net.get_output_embeddings()
        embedded = decoder.get_input_embeddings()(ids)
        if segments is not None:
            # Packed attention takes the queries that share a key head as one segment.
            groups = self.net.config.num_attention_heads // self.net.config.num_key_value_heads
            spans = {
                "position_ids": segments.positions[None],
                "cu_seq_lens_q": segments.bounds * groups,
                "cu_seq_lens_k": segments.bounds,
                "max_length_q": segments.longest * groups,
                "max_length_k": segments.longest,
            }
        elif inside is not None and self.net.config._attn_implementation == "sdpa":
            # In its final shape already: given a 2-D mask, transformers would wait for the device to learn whether it
            # is all true.
            spans = {"attention_mask": inside[:, None, None]}
        else:
            spans = {"attention_mask": None if inside is None else inside.long()}
        hidden = decoder(inputs_embeds=embedded, use_cache=False, **spans).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, where)
        rows = max(1, self.piece // self.net.config.vocab_size)
        if len(where) <= rows:
            return _cross_entropy(head, chosen, label)
        pieces = zip(chosen.split(rows), label.split(rows), strict=True)
        return torch.cat(
            [checkpoint(_cross_entropy, head, part, wanted, use_reentrant=False) for part, wanted in pieces]
        )


def _cross_entropy(head: nn.Module, hidden: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), label, reduction="none")
