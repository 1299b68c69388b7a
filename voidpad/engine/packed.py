"""Packed rows: every live row in one sequence without padding, attention inside each row. Exact.

In half precision on a GPU, attention is torch's variable-length kernel and short passes are replayed as CUDA
graphs, one for each bucket of lengths; elsewhere attention runs row by row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from voidpad.decode.canvas import Canvas
from voidpad.decode.denoise import HFDenoiser
from voidpad.engine.graphs import Graphs, run
from voidpad.engine.narrow import KNOWN, narrowed

NAME = "voidpad_varlen"
HALF = (torch.float16, torch.bfloat16)


def varlen_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention over packed rows: (1, heads, T, size) in, (1, T, heads, size) out.

    Nothing is causal here, so query heads that share a key head are simply more queries of it.
    """
    groups = query.shape[1] // key.shape[1]
    q = query[0].unflatten(0, (-1, groups)).permute(2, 1, 0, 3).flatten(0, 1)  # (T * groups, key heads, size)
    k, v = (x[0].transpose(0, 1) for x in (key, value))
    found = attend(q, k, v, **{name: kwargs[name] for name in SPANS})
    return found.unflatten(0, (-1, groups)).transpose(1, 2).flatten(1, 2)[None], None


SPANS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def attend(q: Tensor, k: Tensor, v: Tensor, **spans: Any) -> Tensor:
    """Each stretch of queries sees its own stretch of keys: (T, heads, size) each."""
    bounds = spans["cu_seq_lens_q"], spans["cu_seq_lens_k"]
    if q.is_cuda and q.dtype in HALF:
        from torch.nn.attention.varlen import varlen_attn

        longest = spans["max_length_q"], spans["max_length_k"]
        found: Any = varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), *bounds, *longest)
        return found
    stretches = zip(*(pairwise(ends.tolist()) for ends in bounds), strict=True)
    parts = [stretch(q[a:b], k[c:d], v[c:d]) for (a, b), (c, d) in stretches if b > a]
    return torch.cat(parts)


def stretch(*qkv: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in qkv)  # (1, heads, n, size)
    return nn.functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


ALL_ATTENTION_FUNCTIONS.register(NAME, varlen_attention)


@dataclass(frozen=True)
class Packing:
    """Stretches of rows laid end to end, the tail filled to a bucket with a stretch that nobody reads."""

    ids: Tensor  # (T,)
    positions: Tensor  # (T,)
    queries: Tensor  # (S + 1,) where each stretch of tokens begins
    keys: Tensor  # (S + 1,) where the keys it sees begin
    places: Tensor  # (N,) the tokens whose states are asked for
    longest: tuple[int, int]  # of the stretches, and of the keys: rounded up, so that graphs fit more often
    extra: tuple[Tensor, ...] = ()  # whatever a cache needs besides

    @classmethod
    def of(cls, canvas: Canvas, where: Tensor, *, shift: int, bucket: int) -> Packing:
        """Whole rows."""
        inside = canvas.inside
        ids = canvas.ids[inside]
        spare = -len(ids) % bucket
        ids = nn.functional.pad(ids, (0, spare), value=canvas.roles.eos)
        positions = torch.cat([canvas.offset.expand_as(canvas.ids)[inside], torch.arange(spare)])
        lengths = torch.cat([canvas.stop, torch.tensor([spare])])
        lengths = nn.functional.pad(lengths, (1, next_power(len(lengths)) - len(lengths)))
        starts = canvas.stop.cumsum(0) - canvas.stop
        row, column = where.nonzero(as_tuple=True)
        longest = rounded(max(int(canvas.stop.max()), spare))
        bounds = lengths.cumsum(0)
        return cls(ids, positions, bounds, bounds, starts[row] + column - shift, (longest, longest))


def next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def rounded(n: int) -> int:
    """Up to a power of two, then to a multiple of 256."""
    return next_power(n) if n <= 256 else -(-n // 256) * 256


def logits(
    inner: HFDenoiser, packing: Packing, graphs: Graphs, *, cache: Cache | None = None, version: int = 0
) -> Tensor:
    """Logits at the packing's places, (N, V). The cache is told `extra` before the pass."""
    config: Any = inner.body.config
    groups = config.num_attention_heads // config.num_key_value_heads
    longest = (packing.longest[0] * groups, packing.longest[1])
    fused = next(inner.body.parameters()).dtype in HALF and inner.device.type == "cuda"
    # Not with the GPU's kernels: it would save one layer in many there, and has not been timed.
    few = 0 < len(packing.places) <= len(packing.ids) // 2
    last = narrowed if few and not fused and config.model_type in KNOWN else whole

    def forward(
        ids: Tensor, positions: Tensor, queries: Tensor, keys: Tensor, places: Tensor, *extra: Tensor
    ) -> Tensor:
        if cache is not None:
            cache.aim(*extra)  # type: ignore[attr-defined]
        with (
            turn(inner.body),
            attention(inner.body, NAME),
            last(inner.body, places, queries, groups) as asked,
        ):
            hidden = inner.body(
                input_ids=ids[None],
                position_ids=positions[None],
                past_key_values=cache,
                use_cache=cache is not None,
                cu_seq_lens_q=(queries * groups).int(),
                cu_seq_lens_k=keys.int(),
                max_length_q=longest[0],
                max_length_k=longest[1],
            ).last_hidden_state[0]
        return inner.head(hidden[asked])

    inputs = [packing.ids, packing.positions, packing.queries, packing.keys, packing.places, *packing.extra]
    # Elsewhere than in half precision attention runs row by row and asks the host: there is nothing to capture.
    if not (fused and graphs.fit(len(packing.ids), inner.device)):
        return run(forward, inputs, inner.device)
    wanted = len(packing.places)
    room = max(32, next_power(wanted)) - wanted  # few different shapes: few graphs
    inputs[4] = nn.functional.pad(packing.places, (0, room))
    return graphs(forward, inputs, inner.device, key=(longest, version))[:wanted]


TURNS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()


def turn(body: nn.Module) -> threading.Lock:
    """One packed pass of a network at a time: its attention and its last layer are changed meanwhile."""
    return TURNS.setdefault(body, threading.Lock())


@contextmanager
def whole(body: nn.Module, places: Tensor, *_: Any) -> Iterator[Tensor]:
    """Every token in every layer."""
    yield places


@dataclass
class PackedDenoiser:
    """A denoiser that packs rows."""

    inner: HFDenoiser
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        packing = Packing.of(canvas, where, shift=self.inner.shift, bucket=self.bucket)
        return logits(self.inner, packing, self.graphs)


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
    torch._dynamo.config.allow_unspec_int_on_nn_module = True  # or a cache's layer index splits them again
    for layer in denoiser.body.layers:  # type: ignore[union-attr]
        layer.compile(dynamic=True)
    return denoiser
