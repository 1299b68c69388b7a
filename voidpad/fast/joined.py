"""Products that share their input, computed as one: queries with keys and values, gate with up. Exact.

A short pass is bound by launches and by half-filled waves of small products. The network keeps its own forward
and the names of its weights, which become views of the joined ones: no memory is spent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

GROUPS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}


class Joined(nn.Linear):
    """The first of several linear maps of one input; it computes the others' outputs too."""

    together: Tensor
    offset: Tensor | None
    others: Sequence[Handed]

    def forward(self, input: Tensor) -> Tensor:
        sizes = [self.out_features, *(other.out_features for other in self.others)]
        own, *rest = linear(input, self.together, self.offset).split(sizes, -1)
        for other, value in zip(self.others, rest, strict=True):
            other.value = value
        return own


class Handed(nn.Linear):
    """A linear map whose output was computed by the first of its group."""

    value: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        value, self.value = self.value, None  # handed over once: nothing of a pass stays behind
        assert value is not None
        return value


def join_products(layers: nn.ModuleList) -> None:
    """In place. Maps that are not plain (quantized, or with an adapter beside them) are left as they are."""
    for layer in layers:
        for part, names in GROUPS.items():
            home = getattr(layer, part)
            maps = [getattr(home, name) for name in names]
            if all(type(one) is nn.Linear for one in maps):
                join(maps)


@torch.no_grad()
def join(maps: Sequence[nn.Linear]) -> None:
    first, *others = maps
    sizes = [one.out_features for one in maps]
    weight = torch.cat([one.weight for one in maps])
    for one, part in zip(maps, weight.split(sizes), strict=True):
        one.weight = nn.Parameter(part, requires_grad=False)
    offset = None if first.bias is None else torch.cat([one.bias for one in maps])
    first.__class__ = Joined
    for other in others:
        other.__class__ = Handed
    first.register_buffer("together", weight, persistent=False)
    first.register_buffer("offset", offset, persistent=False)
    first.others = tuple(others)  # type: ignore[assignment]
