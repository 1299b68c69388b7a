"""The last layer at the tokens asked for. Exact: its keys and values need every token, the rest of it does not,
because no later layer reads the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

KNOWN = ("llama", "qwen2")  # networks whose layers are made of the parts used here


class Given(Cache):
    """Keys and values that are there already; those a layer brings are among them."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__(layers=[])
        self.given = keys, values

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.given


@contextmanager
def narrowed(body: nn.Module, places: Tensor, stretches: Tensor, groups: int) -> Iterator[Tensor]:
    """Passes inside give the states of `places` alone; yields which of them is whose.

    `stretches` says where each packed row begins; `groups` query heads share a key head.
    """
    places, order = places.sort()
    inside = (torch.searchsorted(places, stretches) * groups).int()  # where each row's places begin

    def keep(layer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        (hidden,) = args
        cos, sin = kwargs["position_embeddings"]
        cache, stored = kwargs.get("past_key_values"), keys_and_values(layer, hidden, cos, sin)
        if cache is not None:
            stored = cache.update(*stored, layer.self_attn.layer_idx)
        changed = {
            "position_embeddings": (cos[:, places], sin[:, places]),
            "position_ids": None,
            "past_key_values": Given(*stored),
            "cu_seq_lens_q": inside,
        }
        return (hidden[:, places],), {**kwargs, **changed}

    layers: Any = body.layers
    hook = layers[-1].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield order.argsort()
    finally:
        hook.remove()


def keys_and_values(layer: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(1, heads, T, size) each."""
    seen, part = layer.input_layernorm(hidden), layer.self_attn
    keys, values = (
        project(seen).unflatten(-1, (-1, part.head_dim)).transpose(1, 2)
        for project in (part.k_proj, part.v_proj)
    )
    return apply_rotary_pos_emb(keys, keys, cos, sin)[1], values
