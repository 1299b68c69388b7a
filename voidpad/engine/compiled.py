"""Compiling the layers of a network, the one way in which voidpad uses torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def compile_layers(body: nn.Module, *, cached: bool = False, **options: Any) -> None:
    """Compile each decoder layer in place, at its first pass; layers share the compiled code.

    `options` go to torch.compile. Norms, rotary embedding and gating fuse; the function computed stays the same. With
    `cached`, layers may write to a key-value cache: its layer index, an integer on the module, must then not be
    compiled in, or every layer would be compiled by itself.
    """
    if cached:
        torch._dynamo.config.allow_unspec_int_on_nn_module = True
    layers: Any = body.layers
    for layer in layers:
        layer.compile(**options)
