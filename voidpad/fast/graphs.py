"""CUDA graphs by shape: a short pass is launched once, not kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Graphs:
    """Calls of one shape are captured once and replayed; larger ones run as they are."""

    up_to: int = 0  # tokens; 0 turns graphs off
    captured: dict[Hashable, Callable[[tuple[Tensor, ...]], Tensor]] = field(default_factory=dict)

    def __call__(
        self, call: Callable[..., Tensor], inputs: tuple[Tensor, ...], *, tokens: int, key: Hashable = None
    ) -> Tensor:
        """`call(*inputs)` on the inputs' device. `key` names whatever else shapes the call."""
        if tokens > self.up_to or not inputs[0].is_cuda:
            return call(*inputs)
        shape = (key, *(tuple(x.shape) for x in inputs))
        if shape not in self.captured:
            self.captured[shape] = capture(call, inputs)
        return self.captured[shape](inputs)


def capture(
    call: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> Callable[[tuple[Tensor, ...]], Tensor]:
    buffers = tuple(x.clone() for x in inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # kernels are chosen and compiled before the capture
            call(*buffers)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call(*buffers)

    def replay(fresh: tuple[Tensor, ...]) -> Tensor:
        for buffer, value in zip(buffers, fresh, strict=True):
            buffer.copy_(value, non_blocking=True)
        graph.replay()
        return output

    return replay


def send(device: torch.device, *parts: Tensor) -> tuple[Tensor, ...]:
    """Host tensors on the device, without waiting for it."""
    if device.type != "cuda":
        return tuple(part.to(device) for part in parts)
    return tuple(part.contiguous().pin_memory().to(device, non_blocking=True) for part in parts)
