"""The attention intervention: committed EOS hidden from the slots still to be written (paper, observation 3).

It is a 4-D attention mask, the `forbid` field of the Hugging Face denoiser. The mass that attention puts on EOS
keys is read by hooks on the network's own attention layers; there is no forward pass of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
        with _eager(self.inner.body), self._hooked(canvas) as layers:
            logits = self.inner(canvas, where)
        eos = canvas.inside & (canvas.ids == canvas.roles.eos)
        even = eos.sum(1) / canvas.inside.sum(1)
        for row, key in enumerate(canvas.key.tolist()):
            number = self.passes.get(key, 0)
            self.passes[key] = number + 1
            mass = torch.stack([layer[row] for layer in layers])
            self.seen.append(
                EosAttention(key, number, mass, float(even[row]), int((eos & canvas.slots)[row].sum()))
            )
        return logits

    @contextmanager
    def _hooked(self, canvas: Rows) -> Iterator[list[Tensor]]:
        """Reduce each layer's attention as it passes by: the full weights never pile up."""
        masses: list[Tensor] = []
        device = self.inner.device
        eos = (canvas.inside & (canvas.ids == canvas.roles.eos)).to(device)
        masked = canvas.masked.to(device)

        def take(module: Any, arguments: Any, result: Any) -> None:
            on_eos = (result[1].float().mean(1) * eos[:, None, :]).sum(2)  # (B, queries)
            masses.append(((on_eos * masked).sum(1) / masked.sum(1).clamp(min=1)).cpu())

        layers: Any = self.inner.body.layers
        hooks = [layer.self_attn.register_forward_hook(take) for layer in layers]
        try:
            yield masses
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def _eager(body: Any) -> Iterator[None]:
    """Attention computed so that its weights exist; fused kernels never build them."""
    usual = body.config._attn_implementation
    body.set_attn_implementation("eager")
    try:
        yield
    finally:
        body.set_attn_implementation(usual)


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
