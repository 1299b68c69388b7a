"""Denoisers: called with rows and the slots of interest, they return logits at those slots.

Logits are aligned: those of slot j predict the token of slot j, even for families whose networks predict the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from voidpad.decode.rows import Rows, block_end

Forbid = Callable[[Rows], Tensor]  # -> (B, L, L) bool: query (second axis) must not see key (third axis)


@dataclass(frozen=True)
class HFDenoiser:
    """A transformers network with full or block-causal attention. The vocabulary head runs at the requested slots."""

    body: nn.Module  # such as LlamaModel or Qwen2Model, with config.is_causal = False
    head: nn.Module
    shift: int = 0  # 1 where the network predicts token j at position j - 1, as Dream does
    forbid: Forbid | None = None  # an attention intervention, such as `hidden_eos`
    causal_block: int = 0  # size of the blocks of block-causal attention; 0 for full attention

    @property
    def device(self) -> torch.device:
        return next(self.body.parameters()).device

    @torch.inference_mode()
    def __call__(self, rows: Rows, where: Tensor) -> Tensor:
        hidden = self.hidden(rows)
        row, column = where.nonzero(as_tuple=True)
        device = hidden.device
        logits: Tensor = self.head(hidden[row.to(device), (column - self.shift).to(device)])
        return logits

    def hidden(self, rows: Rows, **kwargs: Any) -> Tensor:
        """The last hidden states (B, L, H) of all positions."""
        mask = self.visible(rows)
        hidden: Tensor = self.body(
            input_ids=rows.ids.to(self.device, non_blocking=True),
            attention_mask=None if mask is None else mask.to(self.device, non_blocking=True),
            use_cache=False,
            **kwargs,
        ).last_hidden_state
        return hidden

    def visible(self, rows: Rows) -> Tensor | None:
        """The attention mask: None if every key is visible, else (B, L) by key or (B, 1, L, L) by query and key."""
        inside = rows.inside
        if self.forbid is None and not self.causal_block:
            return None if bool(inside.all()) else inside.long()
        sees = inside[:, None, :]  # (B, query, key)
        if self.causal_block:
            # A query sees the keys before the end of its own block.
            sees = sees & (rows.offset < block_end(rows.offset, self.causal_block).T)
        if self.forbid is not None:
            sees = sees & ~self.forbid(rows)
        # As numbers to add to the attention scores, which every attention kernel accepts: (B, 1, L, L).
        dtype = next(self.body.parameters()).dtype
        return torch.zeros(sees[:, None].shape, dtype=dtype).masked_fill(
            ~sees[:, None], torch.finfo(dtype).min
        )


# ------------------------------------------------------------------------------------- attention interventions
# Values of `HFDenoiser.forbid` that hide committed EOS tokens: the intervention of the paper's third observation.
def hidden_eos(rows: Rows) -> Tensor:
    """Masked slots (queries) must not see EOS (keys), once one is committed; (B, L, L)."""
    return rows.masked[:, :, None] & _eos_keys(rows)[:, None, :]


def hidden_eos_from_all(rows: Rows) -> Tensor:
    """No other token may see an EOS, once one is committed. An EOS keeps itself, so every query has a key."""
    itself = torch.eye(rows.ids.shape[1], dtype=torch.bool)
    return _eos_keys(rows)[:, None, :] & ~itself


def _eos_keys(rows: Rows) -> Tensor:
    """Every EOS of the row, prompt included, in the rows whose canvas holds one (B, L)."""
    eos = rows.inside & (rows.ids == rows.roles.eos)
    return eos & (eos & rows.slots).any(1, keepdim=True)
