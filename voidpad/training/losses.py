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
    """The loss slots of a mini-batch: everything the loss needs, flat."""

    where: Tensor  # (N,) index into the flattened (B * S) rows
    label: Tensor  # (N,) clean ids
    weight: Tensor  # (N,) float32; the loss is the weighted sum of the cross entropies
    kind: Tensor  # (N,) RESPONSE, EOS or PADDING


Normaliser = Callable[[Batch, Tensor], Tensor | int]  # (batch, row of each loss slot (N,)) -> divisors


def _per_row(batch: Batch, rows: Tensor) -> Tensor:
    """LLaDA: the mean over rows of the sum divided by all target slots of the row, padding included."""
    return (batch.slots * len(batch.ids))[rows]


def _per_slot(batch: Batch, rows: Tensor) -> int:
    """Dream: the sum divided by the number of loss slots of the micro-batch."""
    return len(rows)


NORMALISERS: dict[str, Normaliser] = {"per_row": _per_row, "per_slot": _per_slot}


def loss_slots(batch: Batch, noised: NoisedBatch, normaliser: Normaliser, *, shift: int = 0) -> Slots:
    """Where the loss is taken. With shift 1 (Dream) the label at j is predicted by the output at j - 1."""
    hidden = noised.hidden
    if shift:
        hidden = hidden & (torch.arange(hidden.shape[1], device=hidden.device) >= shift)
    where = hidden.flatten().nonzero()[:, 0]
    rows = where // hidden.shape[1]
    kind = (batch.eos.byte() * EOS + batch.padding.byte() * PADDING).flatten()[where]
    rate = noised.rate.double()[rows]
    rate = torch.where(kind == EOS, 1.0, rate) if noised.forced else rate
    weight = 1 / (rate * normaliser(batch, rows))
    return Slots(where - shift, batch.ids.flatten()[where], weight.float(), kind)


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

    def forward(self, ids: Tensor, where: Tensor, label: Tensor, inside: Tensor | None = None) -> Tensor:
        # A PeftModel passes both calls on to the model inside.
        decoder, head = self.net.get_decoder(), self.net.get_output_embeddings()
        embedded = decoder.get_input_embeddings()(ids)
        if embedded.dtype == torch.float32 and torch.is_autocast_enabled(ids.device.type):
            embedded = embedded.to(self.residual)
        mask = self._mask(inside)
        hidden = decoder(inputs_embeds=embedded, attention_mask=mask, use_cache=False).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, where)
        rows = max(1, self.piece // self.net.config.vocab_size)
        if len(where) <= rows:
            return _cross_entropy(head, chosen, label)
        pieces = zip(chosen.split(rows), label.split(rows), strict=True)
        return torch.cat(
            [checkpoint(_cross_entropy, head, part, wanted, use_reentrant=False) for part, wanted in pieces]
        )

    def _mask(self, inside: Tensor | None) -> Tensor | None:
        """The attention mask over keys. For sdpa it has its final shape already: given a 2-D mask, transformers would
        wait for the device to learn whether it is all true."""
        if inside is None:
            return None
        return inside[:, None, None] if self.net.config._attn_implementation == "sdpa" else inside.long()


def _cross_entropy(head: nn.Module, hidden: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), label, reduction="none")
