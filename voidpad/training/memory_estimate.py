"""How much memory a training step takes, estimated before it runs, and how large a pass may be in what is free."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from voidpad.training.losses import SlotLoss
from voidpad.training.recipe import TrainingRecipe

ON_CPU = 4096  # tokens of a pass; larger ones are no faster there
# Share of the free memory that activations may take; the rest is for fragments and temporary tensors.
FILLED = 0.8
# Tokens from which on a GPU's matrix products run at full speed; layers are recomputed to get there.
EFFICIENT = 2048
ENOUGH = 5e13  # parameters of the layers times tokens of a pass: beyond it a larger pass is no faster


@dataclass(frozen=True)
class TrainingMemory:
    """What training takes on each device, by the shapes of the network.

    It leaves out fragmentation and what the framework itself takes; docs/train.md compares it with measurements.
    """

    recipe: TrainingRecipe
    net: Any
    processes: int = 1

    @cached_property
    def kept(self) -> int:
        """Bytes of weights, gradients and optimiser state."""
        parameters = list(self.net.parameters())
        weights: int = sum(p.numel() * p.element_size() for p in parameters)
        trainable: int = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
        states = 2 if self.recipe.optim.name == "adamw" else 1
        kept = weights + trainable * (1 + states)
        return kept // self.processes if self.recipe.run.fsdp else kept

    @cached_property
    def layers(self) -> int:
        return int(self.net.config.num_hidden_layers)

    @cached_property
    def _element(self) -> int:
        """Bytes of a number in the computing dtype."""
        half = self.recipe.run.computes_in_bfloat16(cuda=torch.cuda.is_available())
        return 2 if half or any(p.dtype == torch.bfloat16 for p in self.net.parameters()) else 4

    def activations(self, tokens: int, checkpointed: int) -> int:
        """Bytes kept for the backward pass. Of a checkpointed layer only the input is kept, and one layer at a time is
        computed again."""
        config = self.net.config
        # What one layer keeps for its backward pass: about 12 tensors as wide as the residual stream (norms, queries,
        # keys, values, attention, both residuals, LoRA's inputs) and 5 as wide as the feed-forward part.
        hidden, wide = int(config.hidden_size), int(config.intermediate_size)
        if hasattr(config, "num_experts_per_tok"):
            wide = int(config.num_experts_per_tok * config.moe_intermediate_size)
        layer = self._element * (12 * hidden + 5 * wide)
        lora = self.recipe.lora
        if lora and lora.dropout:
            # Each adapted product keeps its own thinned input and the mask that thinned it, one byte a number.
            inputs = sum(wide if name.endswith("down_proj") else hidden for name in lora.targets)
            layer += inputs * (self._element + 1)
        stream = self._element * hidden
        whole = self.layers - checkpointed + bool(checkpointed)
        return tokens * (whole * layer + checkpointed * stream)

    def logits(self, tokens: int) -> int:
        """Bytes of one piece of logits in the computing dtype and in float32, and the gradient of the latter."""
        return min(tokens * int(self.net.config.vocab_size), SlotLoss.PIECE) * (self._element + 8)

    def estimate(self, tokens: int, checkpointed: int) -> int:
        """Bytes at the peak of a pass over so many tokens."""
        return self.kept + self.activations(tokens, checkpointed) + self.logits(tokens)

    def fit(self, available: int | None, longest: int) -> tuple[int, int]:
        """Tokens of a pass, and how many layers are checkpointed, so that training fits into `available` bytes.

        No more layers are checkpointed than it takes to hold the longest row and EFFICIENT tokens, or the recipe's
        `pass_tokens`. None says that memory is no concern, as on a CPU.
        """
        run = self.recipe.run
        asked = run.pass_tokens if isinstance(run.pass_tokens, int) else None
        if available is None:
            return asked or max(ON_CPU, longest), self.layers if run.checkpointing is True else 0
        wanted = max(asked or EFFICIENT, longest)
        room = (available - self.kept - self.logits(wanted)) * FILLED

        def tokens(checkpointed: int) -> int:
            return int(room / self.activations(1, checkpointed))

        choices = range(self.layers + 1) if run.checkpointing == "auto" else [run.checkpointing * self.layers]
        checkpointed = next((count for count in choices if tokens(count) >= wanted), choices[-1])
        inside = sum(p.numel() for p in self.net.get_decoder().layers.parameters())
        found = min(tokens(checkpointed), max(wanted, int(ENOUGH / inside)))
        return asked or max(found, longest), checkpointed
