"""Mixtures of experts: releases store the matrices of every expert apart, transformers keeps those of a layer fused.

On disk a layer has `mlp.experts.<n>.{gate,up,down}_proj.weight`; in the network it has `mlp.experts.gate_up_proj`
(experts, 2 * size, hidden) and `mlp.experts.down_proj` (experts, hidden, size). transformers fuses while it loads.
"""

import re
from collections.abc import Iterator

from torch import Tensor

_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


def is_fused(name: str) -> bool:
    """Whether a tensor of the network holds the matrices of all experts of a layer."""
    return _FUSED.fullmatch(name) is not None


def split(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a release stores for one of the network: one for each matrix of each expert.

    The parts are views. A tensor that is not fused comes back alone, under its own name.
    """
    fused = _FUSED.fullmatch(name)
    if fused is None:
        yield name, tensor
        return
    module, projection = fused.groups()
    for number, expert in enumerate(tensor):
        parts = {"gate": expert[: len(expert) // 2], "up": expert[len(expert) // 2 :]}
        for part, matrix in parts.items() if projection == "gate_up_proj" else [("down", expert)]:
            yield f"{module}.{number}.{part}_proj.weight", matrix
