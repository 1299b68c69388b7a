"""Linear layers in float8: weights and activations in e4m3, multiplied by `torch._scaled_mm`.

Each row of a weight (one output) and each row of the activations (one token) has its own scale, which maps its largest
value to the largest number of the format. The product leaves in the dtype of the activations, bfloat16 on a GPU. A GPU
needs compute capability 8.9. torch has a CPU kernel too, which is slow: `load` refuses a CPU, and tests use it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from voidpad.errors import ConfigError

FORMAT = torch.float8_e4m3fn
MULTIPLE = 16  # of both sizes of a weight, for torch._scaled_mm; the number of tokens is free
# Sums stay in the tensor cores, which on Hopper keep about 14 bits of them; without this they move to float32 registers
# every 128 products, which takes time. An e4m3 number has 3 bits behind the leading one: its rounding is far larger.
FAST_ACCUMULATION = True


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (M, K) as float8 and the float32 scale of each, (M, 1): a row is its float8 numbers times its scale.

    These are plain operations, so that a compiled layer computes them in the kernel that makes the rows. Rows of zeros
    stay zeros.
    """
    largest = rows.abs().amax(-1, keepdim=True).float()
    scale = (largest / torch.finfo(FORMAT).max).clamp(min=torch.finfo(torch.float32).tiny)
    return (rows.float() / scale).to(FORMAT), scale


@cache
def _compiled() -> Any:
    """`quantize_rows` as one kernel, for layers that are not compiled: operation by operation it takes many."""
    return torch.compile(quantize_rows, dynamic=True)


class Fp8Linear(nn.Module):
    """Computes what a linear layer computes, up to the rounding of weights and activations to float8.

    The weight is stored in float8; the bias, if there is one, is the layer's own.
    """

    scale: Tensor
    joins = True  # several with the same input may become one product (engine/packed.py)

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = quantize_rows(linear.weight.detach())
        self.weight = nn.Parameter(weight, requires_grad=False)  # (N, K)
        self.register_buffer("scale", scale.t().contiguous())  # (1, N)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        quantize = _compiled() if x.is_cuda and not torch.compiler.is_compiling() else quantize_rows
        numbers, scale = quantize(rows)
        y = torch._scaled_mm(
            numbers,
            self.weight.t(),
            scale_a=scale,
            scale_b=self.scale,
            out_dtype=x.dtype,
            use_fast_accum=FAST_ACCUMULATION,
        )
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], y.shape[-1])


def quantize_layers(net: Any) -> None:
    """Change the decoder layers of transformers' network to float8 in place; embedding and head stay as they are.

    Linear layers of other sizes stay too. Under a LoRA adapter the layer inside is replaced, and the adapter's own
    small matrices stay as they are.
    """
    # The list holds no linear layer: weights are freed as soon as their module has been changed.
    modules = [(path, one) for path, one in net.model.layers.named_modules() if type(one) is not nn.Linear]
    for path, module in modules:
        if getattr(module, "lora_variant", None):
            raise ConfigError(
                "quantize='fp8' cannot go under an adapter that reads the weights it changes, such as DoRA; merge it "
                "first."
            )
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or "lora_" in path:
                continue
            if child.in_features % MULTIPLE == child.out_features % MULTIPLE == 0:
                setattr(module, name, Fp8Linear(child))


def device_fault(device: str) -> str | None:
    """Why this device cannot multiply in float8; None if it can."""
    needed = "needs an NVIDIA GPU of compute capability 8.9 or later (Ada, Hopper, Blackwell)"
    if torch.device(device).type != "cuda" or torch.version.hip is not None:
        return f"{needed}; this is {device!r}"
    capability = torch.cuda.get_device_capability(torch.device(device))
    if capability < (8, 9):
        return f"{needed}; {device!r} has {capability[0]}.{capability[1]}"
    # Before 2.12 torch's kernel for 8.9 ignores the current stream (pytorch issue 177651): no graph can capture it.
    if capability < (9, 0) and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        return f"needs torch 2.12 on a GPU of compute capability 8.9; this is {torch.__version__}"
    return None
