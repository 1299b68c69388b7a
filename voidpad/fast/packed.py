"""Packed rows: every live row in one sequence without padding, attention inside each row. Exact.

On a GPU, attention is torch's variable-length kernel and short passes are replayed as CUDA graphs, one for
each bucket of lengths; on a CPU, attention runs row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from voidpad.decode.canvas import Canvas
from voidpad.decode.denoise import HFDenoiser
from voidpad.fast.graphs import Graphs, send

NAME = "voidpad_varlen"


def varlen_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention over packed rows: (1, heads, T, size) in, (1, T, heads, size) out."""
    bounds, longest = kwargs["cu_seq_lens_q"], kwargs["max_length_q"]
    groups = query.shape[1] // key.shape[1]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, heads, size)
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        found: Any = varlen_attn(
            q.contiguous(), k.contiguous(), v.contiguous(), bounds, bounds, longest, longest
        )
        return found[None], None
    ends = bounds.tolist()
    parts = [row_attention(q, k, v, slice(a, b)) for a, b in pairwise(ends) if b > a]
    return torch.cat(parts)[None], None


def row_attention(q: Tensor, k: Tensor, v: Tensor, span: slice) -> Tensor:
    q, k, v = (x[span].transpose(0, 1)[None] for x in (q, k, v))  # (1, heads, n, size)
    return nn.functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


ALL_ATTENTION_FUNCTIONS.register(NAME, varlen_attention)


@dataclass(frozen=True)
class Packing:
    """Rows laid end to end, the tail filled to a bucket with a row of its own that nobody reads."""

    ids: Tensor  # (1, T)
    positions: Tensor  # (1, T)
    bounds: Tensor  # (S + 1,) int32
    longest: int

    @classmethod
    def of(cls, canvas: Canvas, *, bucket: int) -> Packing:
        inside = canvas.inside
        ids = canvas.ids[inside]
        positions = canvas.offset.expand_as(canvas.ids)[inside]
        spare = -len(ids) % bucket
        ids = torch.cat([ids, ids.new_full((spare,), canvas.roles.eos)])
        positions = torch.cat([positions, torch.arange(spare)])
        lengths = torch.cat([torch.zeros(1, dtype=torch.long), canvas.stop, torch.tensor([spare])])
        slots = next_power(len(lengths))
        lengths = torch.cat([lengths, lengths.new_zeros(slots + 1 - len(lengths))])
        longest = -(-max(int(canvas.stop.max()), spare) // 256) * 256
        return cls(ids[None], positions[None], lengths.cumsum(0).int(), longest)


def next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


@dataclass
class Packed:
    """A denoiser that packs rows."""

    inner: HFDenoiser
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        packing = Packing.of(canvas, bucket=self.bucket)
        starts = canvas.stop.cumsum(0) - canvas.stop
        row, column = where.nonzero(as_tuple=True)
        places = starts[row] + column - self.inner.shift
        *inputs, place = send(self.inner.device, packing.ids, packing.positions, packing.bounds, places)

        def forward(ids: Tensor, positions: Tensor, bounds: Tensor) -> Tensor:
            return self.inner.body(
                input_ids=ids,
                position_ids=positions,
                use_cache=False,
                cu_seq_lens_q=bounds,
                cu_seq_lens_k=bounds,
                max_length_q=packing.longest,
                max_length_k=packing.longest,
            ).last_hidden_state[0]

        with attention(self.inner.body, NAME):
            hidden = self.graphs(forward, tuple(inputs), tokens=packing.ids.shape[1], key=packing.longest)
        return self.inner.head(hidden[place])


@contextmanager
def attention(body: nn.Module, name: str) -> Iterator[None]:
    """This attention for the passes inside; other denoisers of the same network keep theirs."""
    config: Any = body.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def compiled(denoiser: HFDenoiser) -> HFDenoiser:
    """The same denoiser, its layers compiled: norms, rotary embedding and gating fuse; layers share code."""
    for layer in denoiser.body.layers:  # type: ignore[union-attr]
        layer.compile(dynamic=True)
    return denoiser
