"""The last layer, computed only at the tokens whose logits are needed.

This is exact. The last layer's keys and values need every token; its queries and its MLP do not, because no later layer
reads the other tokens. The layers must have the parts of transformers' Llama, with or without Qwen3's norm of the keys;
a family says so (`Family.narrow`), and `HFDenoiser.narrow` carries it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


class _Precomputed(Cache):
    """A cache that returns the keys and values it was made with, and ignores those that the layer computes."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__(layers=[])
        self.stored = keys, values

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.stored


@contextmanager
def narrowed(body: nn.Module, outputs: Tensor, segments: Tensor, groups: int) -> Iterator[Tensor]:
    """Inside the context, forward returns hidden states for `outputs` only; yields the indices of these states in the
    order of `outputs`.

    `segments` says where each packed row begins; `groups` query heads share a key head.
    """
    outputs, order = outputs.sort()
    inside = (torch.searchsorted(outputs, segments) * groups).int()  # where each row's outputs begin

    def keep(layer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        (hidden,) = args
        cos, sin = kwargs["position_embeddings"]
        cache, stored = kwargs.get("past_key_values"), _keys_and_values(layer, hidden, cos, sin)
        if cache is not None:
            stored = cache.update(*stored, layer.self_attn.layer_idx)
        changed = {
            "position_embeddings": (cos[:, outputs], sin[:, outputs]),
            "position_ids": None,
            "past_key_values": _Precomputed(*stored),
            "cu_seq_lens_q": inside,
            "horizons": kwargs["horizons"][outputs] if len(kwargs["horizons"]) else kwargs["horizons"],
        }
        return (hidden[:, outputs],), {**kwargs, **changed}

    layers: Any = body.layers
    hook = layers[-1].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield order.argsort()
    finally:
        hook.remove()


def _keys_and_values(layer: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer for all tokens, (1, heads, T, size) each."""
    seen, part = layer.input_layernorm(hidden), layer.self_attn
    keys, values = (
        project(seen).unflatten(-1, (-1, part.head_dim)) for project in (part.k_proj, part.v_proj)
    )
    if hasattr(part, "k_norm"):
        keys = part.k_norm(keys)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    return apply_rotary_pos_emb(keys, keys, cos, sin)[1], values
