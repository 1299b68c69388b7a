"""The attention intervention: committed EOS hidden from the slots still to be written (paper, observation 3).

It is a 4-D attention mask, the `forbid` field of the Hugging Face denoiser. The mass that attention puts on EOS
keys is read by hooks on the network's own attention layers; there is no forward pass of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from voidpad.decode.denoise import Forbid, HFDenoiser, hidden_eos, hidden_eos_from_all
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows
from voidpad.engine.batching import Engine
from voidpad.models import Model

QUERIES: dict[str, Forbid] = {"masked": hidden_eos, "all": hidden_eos_from_all}


@dataclass(frozen=True)
class EosAttention:
    """One pass of one row: where the masked slots look, averaged over them and over heads."""

    key: int
    number: int  # pass, from 0
    eos: Tensor  # (layers,) attention on EOS keys
    even: float  # what it would be if all keys were looked at alike
    committed: int  # EOS on the canvas


@dataclass
class AttentionProbe:
    """A Denoiser around the network's: same logits, and the mass on EOS keys of every pass."""

    inner: HFDenoiser
    seen: list[EosAttention] = field(default_factory=list)
    passes: dict[int, int] = field(default_factory=dict)

    def __call__(self, canvas: Rows, where: Tensor) -> Tensor:
        eos = canvas.inside & (canvas.ids == canvas.roles.eos)
        keys, masked = eos.to(self.inner.device), canvas.masked.to(self.inner.device)
        masses: list[Tensor] = []

        def take(module: Any, arguments: Any, result: Any) -> None:
            """Reduce a layer's attention as it passes by: the full weights never pile up."""
            on_eos = (result[1].float().mean(1) * keys[:, None, :]).sum(2)  # (B, queries)
            masses.append(((on_eos * masked).sum(1) / masked.sum(1).clamp(min=1)).cpu())

        body: Any = self.inner.body
        usual = body.config._attn_implementation
        body.set_attn_implementation("eager")  # fused kernels never build the weights
        hooks = [layer.self_attn.register_forward_hook(take) for layer in body.layers]
        try:
            logits = self.inner(canvas, where)
        finally:
            body.set_attn_implementation(usual)
            for hook in hooks:
                hook.remove()
        even, committed = eos.sum(1) / canvas.inside.sum(1), (eos & canvas.slots).sum(1)
        for row, key in enumerate(canvas.key.tolist()):
            number = self.passes.get(key, 0)
            self.passes[key] = number + 1
            mass = torch.stack([layer[row] for layer in masses])
            self.seen.append(EosAttention(key, number, mass, float(even[row]), int(committed[row])))
        return logits


def probe_attention(
    model: Model, prompts: Sequence[Sequence[int]], plan: Plan, *, forbid: Forbid | None = None
) -> list[EosAttention]:
    """The mass on EOS keys at every pass of these decodes."""
    probe = AttentionProbe(model.denoiser(forbid=forbid))
    list(Engine(probe, model.roles, rows=max(1, len(prompts))).run(prompts, plan))
    return probe.seen


def by_layer(seen: Sequence[EosAttention]) -> tuple[list[float], float]:
    """Mean mass of each layer, and of even attention, over the passes with an EOS on the canvas."""
    some = [one for one in seen if one.committed]
    if not some:
        return [], 0.0
    layers = torch.stack([one.eos for one in some]).mean(0).tolist()
    return layers, sum(one.even for one in some) / len(some)
