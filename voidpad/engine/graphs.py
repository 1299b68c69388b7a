"""Fewer waits between host and GPU: a pass copies its inputs at once and launches its kernels as a CUDA graph."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from voidpad.decode.rows import send

T = TypeVar("T")  # what a pass returns: a tensor, or a tuple of tensors


@dataclass
class Graphs:
    """Captures a CUDA graph for each shape of small passes and replays it; larger passes run without a graph."""

    up_to: int = 0  # most tokens of a pass that gets a graph; 0 turns graphs off
    most: int = 64  # graphs that are kept; the one that was used longest ago goes first
    captured: OrderedDict[Hashable, CapturedGraph] = field(default_factory=OrderedDict)
    pool: Any = None  # memory that all graphs share: they never run side by side

    def fit(self, tokens: int, device: torch.device) -> bool:
        return device.type == "cuda" and tokens <= self.up_to

    def __call__(
        self,
        call: Callable[..., T],
        inputs: Sequence[Tensor],
        device: torch.device,
        *,
        key: Hashable,
        state: Sequence[Tensor] = (),
    ) -> T:
        """`call(*inputs, *state)` on the device. The next call overwrites the output.

        A graph is found again by `key`, which stands for what `call` depends on besides its arguments, by the shapes of
        the inputs and by the addresses of the state. Inputs are on the host and are copied, unless they are the very
        list of this graph's last call. The tensors of `state` are on the device: the call reads and changes them where
        they are.
        """
        shapes = tuple(tuple(x.shape) for x in inputs)
        name = (key, shapes, tuple(x.data_ptr() for x in state))
        if name not in self.captured:
            self.captured[name] = self._capture(call, inputs, shapes, state, device)
            if len(self.captured) > self.most:
                self.captured.popitem(last=False)
        self.captured.move_to_end(name)
        result: T = self.captured[name](inputs)
        return result

    def forget(self) -> None:
        """Drop every graph, because tensors that they read have moved.

        Their memory pool goes too: a pool whose graphs are gone cannot be captured into while one of its tensors lives.
        """
        self.captured.clear()
        self.pool = None

    def _capture(
        self,
        call: Callable[..., Any],
        inputs: Sequence[Tensor],
        shapes: Shapes,
        state: Sequence[Tensor],
        device: torch.device,
    ) -> CapturedGraph:
        on_host = _flatten(inputs).pin_memory()
        buffer = on_host.to(device)
        before = [part.clone() for part in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # kernels are chosen and compiled before the capture
                call(*_unflatten(buffer, shapes), *state)
        torch.cuda.current_stream().wait_stream(stream)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        enabled = gc.isenabled()
        gc.disable()  # collecting an old graph while another is captured spoils the capture
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                output = call(*_unflatten(buffer, shapes), *state)
        finally:
            if enabled:
                gc.enable()
        for part, value in zip(state, before, strict=True):
            part.copy_(value)
        return CapturedGraph(graph, on_host, buffer, output)


@dataclass
class CapturedGraph:
    """A graph with its buffers: calling it copies inputs in, starts the kernels and returns the output unread."""

    graph: Any
    on_host: Tensor  # pinned
    buffer: Tensor
    output: Any
    copied: Any = field(default_factory=lambda: torch.cuda.Event())
    inputs: Sequence[Tensor] | None = None  # what the buffer holds

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        if inputs is not self.inputs:
            self.copied.synchronize()  # the last copy has left the pinned memory
            torch.cat([x.reshape(-1) for x in inputs], out=self.on_host)
            self.buffer.copy_(self.on_host, non_blocking=True)
            self.copied.record()
            self.inputs = inputs
        self.graph.replay()
        return self.output


def run(call: Callable[..., T], inputs: Sequence[Tensor], device: torch.device) -> T:
    """`call(*inputs)` on the device, with one copy for all inputs."""
    return call(*_unflatten(send(_flatten(inputs), device), tuple(tuple(x.shape) for x in inputs)))


Shapes = tuple[tuple[int, ...], ...]


def _flatten(inputs: Sequence[Tensor]) -> Tensor:
    """All inputs, int64 tensors, as one flat tensor."""
    return torch.cat([x.reshape(-1) for x in inputs])


def _unflatten(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """The tensors that `_flatten` joined, as views."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
