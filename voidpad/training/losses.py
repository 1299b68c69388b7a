"""The loss of spec 1.4 under either normalisation, with the vocabulary head applied at loss slots only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from voidpad.training.noising import NoisedBatch
from voidpad.training.padding import Batch

RESPONSE, EOS, PADDING = 0, 1, 2  # uint8 codes
KINDS = ("response", "eos", "padding")


@dataclass(frozen=True)
class Slots:
    """The loss slots of some rows: everything the loss needs, flat."""

    where: Tensor  # (N,) index into the flattened (B * S) rows
    label: Tensor  # (N,) clean ids
    weight: Tensor  # (N,) float32; the loss is the weighted sum of the cross entropies
    kind: Tensor  # (N,) RESPONSE, EOS or PADDING


# (batch, row of each loss slot (N,), mini-batch of each row (B,)) -> divisors (N,)
Normaliser = Callable[[Batch, Tensor, Tensor], Tensor]


def _per_row(batch: Batch, rows: Tensor, mini_batch: Tensor) -> Tensor:
    """LLaDA: the mean over rows of the sum divided by all target slots of the row, padding included."""
    return (batch.slots * _members(mini_batch))[rows]


def _per_slot(batch: Batch, rows: Tensor, mini_batch: Tensor) -> Tensor:
    """Dream: the sum divided by the number of loss slots of the mini-batch."""
    return _members(mini_batch[rows], most=len(mini_batch))


NORMALISERS: dict[str, Normaliser] = {"per_row": _per_row, "per_slot": _per_slot}


def _members(group: Tensor, most: int | None = None) -> Tensor:
    """For each element, how many are in its group. The device is not asked how many groups there are."""
    sizes = torch.zeros(len(group) if most is None else most, dtype=torch.long, device=group.device)
    return sizes.index_add_(0, group, torch.ones_like(group))[group]


def loss_slots(
    batch: Batch,
    noised: NoisedBatch,
    normaliser: Normaliser,
    *,
    shift: int = 0,
    mini_batch: Tensor | None = None,
) -> Slots:
    """Where the loss is taken. With shift 1 (Dream) the label at j is predicted by the output at j - 1.

    The loss is the mean over mini-batches, each counted by its rows. `mini_batch` (B,) numbers them below B; without
    it all rows are one.
    """
    hidden = noised.hidden
    if mini_batch is None:
        mini_batch = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
    if shift:
        hidden = hidden & (torch.arange(hidden.shape[1], device=hidden.device) >= shift)
    where = hidden.flatten().nonzero()[:, 0]
    rows = where // hidden.shape[1]
    kind = (batch.eos.byte() * EOS + batch.padding.byte() * PADDING).flatten()[where]
    rate = noised.rate.double()[rows]
    rate = torch.where(kind == EOS, 1.0, rate) if noised.forced else rate
    share = _members(mini_batch).double() / len(mini_batch)
    weight = share[rows] / (rate * normaliser(batch, rows, mini_batch))
    return Slots(where - shift, batch.ids.flatten()[where], weight.float(), kind)


@dataclass(frozen=True)
class PackedPass:
    """Where the rows of a pass lie that are one sequence, end to end."""

    positions: Tensor  # (T,) of each token in its row
    bounds: Tensor  # (R + 1,) int32: where each row begins
    longest: int  # no row is longer


class SlotLoss(nn.Module):
    """A language model as a function from rows and loss slots to the cross entropy at each slot, in float32.

    DDP and FSDP wrap this module, so that the head is inside their forward. The head runs in pieces of at most
    `piece` logits, recomputed in the backward pass: with a vocabulary of 126k no other tensor is as large.
    """

    accepts_loss_kwargs = False  # otherwise Trainer would not divide by the accumulation steps
    PIECE = 1 << 27  # logits

    def __init__(self, net: nn.Module, *, piece: int = PIECE, residual: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.net: Any = net
        self.piece = piece
        self.residual = residual  # dtype of the layers' running sum where autocast is on

    def forward(
        self,
        ids: Tensor,
        where: Tensor,
        label: Tensor,
        inside: Tensor | None = None,
        packed: PackedPass | None = None,
    ) -> Tensor:
        """The cross entropy (N,) of `label` at the slots `where` (N,) of the flattened `ids` (B, S).

        Attention sees the slots `inside` (B, S); rows that are laid end to end are told apart by `packed`.
        """
        # A PeftModel passes both calls on to the model inside.
        decoder, head = self.net.get_decoder(), self.net.get_output_embeddings()
        embedded = decoder.get_input_embeddings()(ids)
        if embedded.dtype == torch.float32 and torch.is_autocast_enabled(ids.device.type):
            embedded = embedded.to(self.residual)
        spans = {"attention_mask": self._mask(inside)} if packed is None else self._spans(packed)
        hidden = decoder(inputs_embeds=embedded, use_cache=False, **spans).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, where)
        rows = max(1, self.piece // self.net.config.vocab_size)
        if len(where) <= rows:
            return _cross_entropy(head, chosen, label)
        pieces = zip(chosen.split(rows), label.split(rows), strict=True)
        return torch.cat(
            [checkpoint(_cross_entropy, head, part, wanted, use_reentrant=False) for part, wanted in pieces]
        )

    def _spans(self, packed: PackedPass) -> dict[str, Any]:
        """Keyword arguments of the network's packed attention, which takes a key head's queries as one segment."""
        config = self.net.config
        groups = config.num_attention_heads // config.num_key_value_heads
        return {
            "position_ids": packed.positions[None],
            "cu_seq_lens_q": packed.bounds * groups,
            "cu_seq_lens_k": packed.bounds,
            "max_length_q": packed.longest * groups,
            "max_length_k": packed.longest,
        }

    def _mask(self, inside: Tensor | None) -> Tensor | None:
        """The attention mask over keys. For sdpa it has its final shape already: given a 2-D mask, transformers would
        wait for the device to learn whether it is all true."""
        if inside is None:
            return None
        return inside[:, None, None] if self.net.config._attn_implementation == "sdpa" else inside.long()


def _cross_entropy(head: nn.Module, hidden: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), label, reduction="none")
