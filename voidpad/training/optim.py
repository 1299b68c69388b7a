"""Optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from voidpad.training.recipe import OptimPart

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def rate_factor(part: OptimPart, progress: float) -> float:
    """The factor on the learning rate after the share `progress` of the run: warm-up, stable, decay."""
    rise = min(1.0, progress / part.warmup) if part.warmup else 1.0
    fall = min(1.0, max(0.0, 1 - progress) / part.decay) if part.decay else 1.0
    return rise * fall


def optimizers(model: nn.Module, part: OptimPart) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices inside the layers and AdamW for the rest.

    Every group notes its `initial_lr`, which the schedule multiplies.
    """
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            by_muon = part.name == "muon" and p.ndim == 2 and ".layers." in name
            (matrices if by_muon else rest).append(p)
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": part.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},  # norms and biases
    ]
    groups = [group for group in groups if group["params"]]
    fused = all(p.is_cuda and p.is_floating_point() for p in rest)
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=part.lr, betas=part.betas, fused=fused)
    ]
    if part.name == "muon":
        found.append(Muon(matrices, lr=part.muon_lr or part.lr, weight_decay=part.weight_decay))
    for optimizer in found:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return found


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon's update with all matrices of one shape orthogonalised together.

    torch's own runs 15 small products per matrix, one matrix after the other: at 7M parameters that takes longer
    than the rest of the step. Updates are scaled by 0.2 sqrt(max dimension), which matches the size of AdamW's, so
    that one learning rate serves both.
    """

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            momentum, lr, decay = group["momentum"], group["lr"], group["weight_decay"]
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
                    if not self.state[p]:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            for shape, matrices in shapes.items():
                grads = [p.grad for p in matrices if p.grad is not None]
                buffers = [self.state[p]["momentum_buffer"] for p in matrices]
                torch._foreach_lerp_(buffers, grads, 1 - momentum)
                ahead = torch._foreach_lerp(grads, buffers, momentum)  # Nesterov
                update = orthogonal(torch.stack(ahead))
                torch._foreach_mul_(matrices, 1 - lr * decay)
                torch._foreach_add_(matrices, list(update.unbind()), alpha=-lr * 0.2 * math.sqrt(max(shape)))


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximately the nearest (semi-)orthogonal matrices of (N, r, c), by a quintic Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(torch.bfloat16 if matrices.is_cuda else matrices.dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)
