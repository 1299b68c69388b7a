"""Packed rows: every live row in one sequence without padding, attention inside each row. Exact.

In half precision on a GPU, attention is torch's variable-length kernel and short passes are replayed as CUDA
graphs, one for each bucket of lengths; elsewhere attention runs row by row.

Block-causal attention over several blocks of a row runs row by row with a mask everywhere: the kernel gives all tokens
of a segment the same keys. The exact cache (`cache.py`) computes one block of a row at a time and needs no mask.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from voidpad.decode.canvas import Canvas
from voidpad.decode.causal import horizon
from voidpad.decode.denoise import HFDenoiser
from voidpad.engine.graphs import Graphs, run
from voidpad.engine.narrow import narrowed

NAME = "voidpad_varlen"
HALF = (torch.float16, torch.bfloat16)
# A packed pass changes the attention and the last layer of its network, so passes over one network run one at a time.
LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()


def _varlen_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention over packed rows: (1, heads, T, size) in, (1, T, heads, size) out.

    No token is told from its neighbours by order, so query heads that share a key head are simply more queries of it.
    """
    # As torch's own attention does: the positions' rotation made queries and keys float32.
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    horizons = kwargs.get("horizons", query.new_empty(0)).repeat_interleave(groups)
    q = query[0].unflatten(0, (-1, groups)).permute(2, 1, 0, 3).flatten(0, 1)  # (T * groups, key heads, size)
    k, v = (x[0].transpose(0, 1) for x in (key, value))
    mixed = _attend(q, k, v, horizons, **{name: kwargs[name] for name in SPANS})
    return mixed.unflatten(0, (-1, groups)).transpose(1, 2).flatten(1, 2)[None], None


def kernel_exists() -> bool:
    """Whether this torch and this GPU have the variable-length kernel."""
    found = find_spec("torch.nn.attention.varlen") is not None
    return found and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


SPANS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def _attend(q: Tensor, k: Tensor, v: Tensor, horizons: Tensor, **spans: Any) -> Tensor:
    """Variable-length attention: each segment of queries sees its own segment of keys, (T, heads, size) each.

    Where there are `horizons` (T,), a query sees only so many of these keys, the first ones.
    """
    bounds = spans["cu_seq_lens_q"], spans["cu_seq_lens_k"]
    if q.is_cuda and q.dtype in HALF and not len(horizons):
        from torch.nn.attention.varlen import varlen_attn

        longest = spans["max_length_q"], spans["max_length_k"]
        mixed = varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), *bounds, *longest)
        return cast(Tensor, mixed)
    segments = zip(*(pairwise(ends.tolist()) for ends in bounds), strict=True)
    parts = [
        _attend_segment(q[a:b], k[c:d], v[c:d], horizons=horizons[a:b])
        for (a, b), (c, d) in segments
        if b > a
    ]
    return torch.cat(parts)


def _attend_segment(*qkv: Tensor, horizons: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in qkv)  # (1, heads, n, size)
    sees = torch.arange(k.shape[2], device=k.device) < horizons[:, None] if len(horizons) else None
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)[0].transpose(0, 1)


ALL_ATTENTION_FUNCTIONS.register(NAME, _varlen_attention)


@dataclass(frozen=True)
class Packing:
    """Segments of rows laid end to end in one sequence; a segment of filler brings it to a multiple of the bucket."""

    ids: Tensor  # (T,)
    positions: Tensor  # (T,)
    queries: Tensor  # (S + 1,) where each segment of tokens begins
    keys: Tensor  # (S + 1,) where the keys that it sees begin
    outputs: Tensor  # (N,) indices of the tokens whose logits are needed
    # Longest segment of tokens and of keys, rounded up so that CUDA graphs fit more often.
    longest: tuple[int, int]
    extra: tuple[Tensor, ...] = ()  # further inputs that a cache needs
    # (T,) how many keys of its segment, from the first one on, each token sees; empty if it sees all of them
    horizons: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @classmethod
    def of(cls, canvas: Canvas, where: Tensor, *, shift: int, bucket: int, causal_block: int = 0) -> Packing:
        """All tokens of all rows."""
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
        outputs = starts[row] + column - shift
        horizons = horizon(positions, causal_block) if causal_block else positions[:0]
        return cls(ids, positions, bounds, bounds, outputs, (longest, longest), horizons=horizons)


def next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def rounded(n: int) -> int:
    """n rounded up: to a power of two up to 256, to a multiple of 256 above."""
    return next_power(n) if n <= 256 else -(-n // 256) * 256


def logits(
    inner: HFDenoiser, packing: Packing, graphs: Graphs, *, cache: Cache | None = None, version: int = 0
) -> Tensor:
    """Logits at the packing's outputs, (N, V). The cache gets `extra` before the pass."""
    config: Any = inner.body.config
    groups = config.num_attention_heads // config.num_key_value_heads
    longest = (packing.longest[0] * groups, packing.longest[1])
    half = next(inner.body.parameters()).dtype in HALF and inner.device.type == "cuda"
    fused = half and not len(packing.horizons)
    # Not with the GPU's fused kernel: there it would save one layer of many, and it has not been timed.
    few = 0 < len(packing.outputs) <= len(packing.ids) // 2
    last = narrowed if few and not fused and inner.narrow else _whole

    def forward(
        ids: Tensor,
        positions: Tensor,
        queries: Tensor,
        keys: Tensor,
        outputs: Tensor,
        horizons: Tensor,
        *extra: Tensor,
    ) -> Tensor:
        if cache is not None:
            cache.aim(*extra)  # type: ignore[attr-defined]
        with (
            LOCKS.setdefault(inner.body, threading.Lock()),
            _attention(inner.body, NAME),
            last(inner.body, outputs, queries, groups) as needed,
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
                horizons=horizons,
            ).last_hidden_state[0]
        logits: Tensor = inner.head(hidden[needed])
        return logits

    inputs = [packing.ids, packing.positions, packing.queries, packing.keys, packing.outputs]
    inputs += [packing.horizons, *packing.extra]
    # Outside half precision, attention runs row by row and reads lengths on the host: a graph cannot hold that.
    if not (fused and graphs.fit(len(packing.ids), inner.device)):
        return run(forward, inputs, inner.device)
    count = len(packing.outputs)
    spare = max(32, next_power(count)) - count  # few different shapes: few graphs
    inputs[4] = nn.functional.pad(packing.outputs, (0, spare))
    return graphs(forward, inputs, inner.device, key=(longest, version))[:count]


@contextmanager
def _whole(body: nn.Module, outputs: Tensor, *_: Any) -> Iterator[Tensor]:
    """Takes the place of `narrowed` where every layer computes every token; yields `outputs` as they are."""
    yield outputs


@dataclass
class PackedDenoiser:
    """A denoiser that computes all rows as one packed sequence. It gives the logits of the plain denoiser."""

    inner: HFDenoiser
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        inner = self.inner
        packing = Packing.of(
            canvas, where, shift=inner.shift, bucket=self.bucket, causal_block=inner.causal_block
        )
        return logits(inner, packing, self.graphs)


@contextmanager
def _attention(body: nn.Module, name: str) -> Iterator[None]:
    """Inside the context, the network uses the attention function `name`; afterwards its own again."""
    config: Any = body.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
