"""How much memory a training step takes, estimated before it runs."""

from __future__ import annotations

from typing import Any

import torch

from voidpad.training.losses import SlotLoss
from voidpad.training.recipe import TrainingRecipe


def estimate(recipe: TrainingRecipe, net: Any, *, slots: int, processes: int = 1) -> int:
    """Bytes on each device: weights, gradients, optimiser state, activations and the logits of one piece.

    `slots` is the length of the longest row. The estimate leaves out fragmentation and what the framework itself
    takes; docs/train.md compares it with measurements.
    """
    parameters = list(net.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    trainable = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    states = 2 if recipe.optim.name == "adamw" else 1
    kept = weights + trainable * (1 + states)
    if recipe.run.fsdp:
        kept //= processes
    config = net.config
    half = recipe.run.bf16 == "on" or (recipe.run.bf16 == "auto" and torch.cuda.is_available())
    size = 2 if half or any(p.dtype == torch.bfloat16 for p in parameters) else 4
    tokens = recipe.run.micro_batch * slots
    # What one layer keeps for its backward pass: about 12 tensors as wide as the residual stream (norms, queries,
    # keys, values, attention, both residuals, LoRA's inputs) and 5 as wide as the feed-forward part.
    wide = config.intermediate_size
    if hasattr(config, "num_experts_per_tok"):
        wide = config.num_experts_per_tok * config.moe_intermediate_size
    layer = tokens * size * (12 * config.hidden_size + 5 * wide)
    stream = tokens * size * config.hidden_size
    if recipe.run.checkpointing:
        activations = config.num_hidden_layers * stream + layer
    else:
        activations = config.num_hidden_layers * layer
    # Logits in the computing dtype and in float32, and the gradient of the latter.
    logits = min(tokens * config.vocab_size, SlotLoss.PIECE) * (size + 8)
    return int(kept + activations + logits)
