"""Fewer waits between host and GPU: a pass copies its inputs at once and launches its kernels as a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from voidpad.decode.canvas import send

Call = Callable[..., Tensor]


@dataclass
class Graphs:
    """Captures a CUDA graph for each shape of small passes and replays it; larger passes run without a graph."""

    up_to: int = 0  # most tokens of a pass that gets a graph; 0 turns graphs off
    captured: dict[Hashable, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    pool: Any = None  # memory that all graphs share: they never run side by side

    def fit(self, tokens: int, device: torch.device) -> bool:
        return device.type == "cuda" and tokens <= self.up_to

    def __call__(
        self, call: Call, inputs: Sequence[Tensor], device: torch.device, *, key: Hashable
    ) -> Tensor:
        """`call(*inputs)` on the device. The next call overwrites the output. `key` names what else shapes it."""
        flat, shapes = _together(inputs, device)
        name = (key, shapes)
        if name not in self.captured:
            self.captured[name] = self._capture(lambda inputs: call(*_apart(inputs, shapes)), flat)
        return self.captured[name](flat)

    def forget(self) -> None:
        """Drop every graph, because tensors that they read have moved.

        Their memory pool goes too: a pool whose graphs are gone cannot be captured into while one of its tensors lives.
        """
        self.captured.clear()
        self.pool = None

    def _capture(self, call: Callable[[Tensor], Tensor], inputs: Tensor) -> Callable[[Tensor], Tensor]:
        buffer = inputs.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # kernels are chosen and compiled before the capture
                call(buffer)
        torch.cuda.current_stream().wait_stream(stream)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with _uncollected(), torch.cuda.graph(graph, pool=self.pool):
            output = call(buffer)

        def replay(fresh: Tensor) -> Tensor:
            buffer.copy_(fresh, non_blocking=True)
            graph.replay()
            return output

        return replay


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection inside: collecting an old graph while another is captured spoils the capture."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def run(call: Call, inputs: Sequence[Tensor], device: torch.device) -> Tensor:
    """`call(*inputs)` on the device, with one copy for all inputs."""
    return call(*_apart(*_together(inputs, device)))


Shapes = tuple[tuple[int, ...], ...]


def _together(inputs: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Shapes]:
    """All inputs as one flat tensor on the device, and their shapes."""
    shapes = tuple(tuple(x.shape) for x in inputs)
    return send(torch.cat([x.reshape(-1) for x in inputs]), device), shapes


def _apart(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """The tensors that `_together` joined, as views."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
