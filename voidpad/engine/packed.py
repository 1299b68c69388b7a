"""Packed rows: every live row in one sequence without padding, attention inside each row.

The forward pass is written here, on the modules of transformers' network, for three reasons: keys and values go to the
store of a cache, the last layer is computed only for the tokens whose logits are needed (no later layer reads the
others), and a compiled pass multiplies by joined matrices. The layers must have the parts of transformers' Llama, with
or without Qwen3's norms of queries and keys; the MLP may be a mixture of experts.

In half precision on a GPU, attention is torch's variable-length kernel and short passes are replayed as CUDA graphs
(`graphs.py`); elsewhere attention runs row by row. Block-causal attention over several blocks of a row runs row by row
with a mask everywhere: the kernel gives all tokens of a segment the same keys. The exact cache (`cache.py`) computes
one block of a row at a time and needs no mask.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.rows import Rows, block_end
from voidpad.engine.cache_policy import Range
from voidpad.engine.graphs import Graphs, run

HALF = (torch.float16, torch.bfloat16)


# ------------------------------------------------------------------------------------------- what a pass computes
@dataclass(frozen=True)
class Part:
    """What a pass computes of one row: the tokens in `ranges`, which see the row's keys up to `visible`."""

    place: int  # where the row's keys begin among all keys
    ranges: tuple[Range, ...]
    visible: int  # position; nothing from there on is computed or seen


@dataclass(frozen=True)
class Packing:
    """The tokens of a pass, laid end to end in one sequence, and the keys that they see.

    A segment of filler brings the sequence to a multiple of the bucket. Most packings hold for several passes. T counts
    the rows' tokens, S the segments.
    """

    row: Tensor  # (T,) the packed tokens, without the filler
    column: Tensor  # (T,)
    packed_at: Tensor  # (B, L) where each token is in the sequence; -1 for those that are not computed
    positions: Tensor  # (T + filler,)
    queries: Tensor  # (S + 1,) where each segment of tokens begins
    keys: Tensor  # (S + 1,) where the keys that it sees begin
    # Longest segment of tokens and of keys, rounded up so that CUDA graphs fit more often.
    longest: tuple[int, int]
    # (T + filler,) how many keys of its segment each token sees, from the first one on; empty if all tokens see all
    visible_keys: Tensor
    stored: Tensor  # (T + filler,) places of the keys of this pass

    @classmethod
    def of(
        cls, parts: Sequence[Part], capacity: int, widest: tuple[int, int], bucket: int, causal: int
    ) -> Packing:
        """The tokens of these parts in the order of their places; all places together have `capacity` keys.

        `widest` are numbers of rows and of keys of a row to which the packing is filled up, so that graphs fit again.
        """
        order = sorted(range(len(parts)), key=lambda number: parts[number].place)
        counts = [sum(end - begin for begin, end in parts[number].ranges) for number in order]
        column = torch.cat([torch.arange(*span) for number in order for span in parts[number].ranges])
        row = torch.tensor(order).repeat_interleave(torch.tensor(counts))
        packed_at = torch.full((len(parts), max(part.visible for part in parts)), -1)
        packed_at[row, column] = torch.arange(len(row))
        spare = -len(row) % bucket
        filler = torch.arange(spare)
        # Two segments for each row: the keys in front of its own that nobody reads now, without queries, and its own.
        queries, keys, reached = [0], [0], 0
        for number, count in zip(order, counts, strict=True):
            queries += [0, count]
            keys += [parts[number].place - reached, parts[number].visible]
            reached = parts[number].place + parts[number].visible
        empty = [0] * (2 * (widest[0] - len(parts)))
        queries += [*empty, 0, spare]
        keys += [*empty, capacity - reached, spare]
        positions, visible_keys = torch.cat([column, filler]), filler[:0]
        places, ends = (
            torch.tensor([getattr(part, name) for part in parts]) for name in ("place", "visible")
        )
        if causal and bool((block_end(column, causal) < ends[row]).any()):
            visible_keys = block_end(positions, causal)
        return cls(
            row=row,
            column=column,
            packed_at=packed_at,
            positions=positions,
            queries=torch.tensor(queries).cumsum(0),
            keys=torch.tensor(keys).cumsum(0),
            longest=(rounded(max(*counts, spare)), widest[1]),
            visible_keys=visible_keys,
            stored=torch.cat([places[row] + column, capacity + filler]),
        )

    def __len__(self) -> int:
        return len(self.positions)

    def source(self, columns: int) -> Tensor:
        """Where the packed tokens are in ids (B, columns) laid flat; the filler takes the first one's."""
        return pad(self.row * columns + self.column, (0, len(self) - len(self.row)))

    def outputs(self, where: Tensor, shift: int) -> Tensor:
        """The packed tokens (N,) that give the logits at the slots `where` (B, L)."""
        row, column = where.nonzero(as_tuple=True)
        outputs = self.packed_at[row, column - shift]
        assert bool((outputs >= 0).all())  # the packing left out a slot that is asked for
        return outputs

    def inputs(self, ids: Tensor, outputs: Tensor) -> tuple[Tensor, ...]:
        """The tensors that `forward` takes."""
        return ids, self.positions, self.queries, self.keys, outputs, self.visible_keys, self.stored


def next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def rounded(n: int) -> int:
    """n rounded up: to a power of two up to 256, to a multiple of 256 above."""
    return next_power(n) if n <= 256 else -(-n // 256) * 256


@dataclass
class PackedDenoiser:
    """A denoiser that computes all rows as one packed sequence. It gives the logits of the plain denoiser."""

    inner: HFDenoiser
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)
    store: Any = None  # where the keys and values of a pass go: `cache.Arena`; None keeps none
    packings: dict[Any, Packing] = field(default_factory=dict, repr=False)
    widest: tuple[int, int] = (1, 1)  # most rows and most keys of a row so far; it only grows: graphs fit on

    @torch.inference_mode()
    def __call__(self, rows: Rows, where: Tensor) -> Tensor:
        packing, done = self.pack(rows, where)
        ids = rows.ids.take(packing.source(rows.ids.shape[1]))
        outputs, device = packing.outputs(where, self.inner.shift), self.inner.device

        def call(*tensors: Tensor) -> Tensor:
            return forward(self.inner, self.store, packing.longest, *tensors)

        if self.graphed(packing):
            count = len(outputs)
            spare = max(32, next_power(count)) - count  # few different shapes: few graphs
            inputs = packing.inputs(ids, pad(outputs, (0, spare), value=len(packing) - 1))
            found = self.graphs(call, inputs, device, key=(packing.longest, self.version))[:count]
        else:
            found = run(call, packing.inputs(ids, outputs), device)
        done()
        return found

    @property
    def version(self) -> int:
        """Changes when a graph may no longer read the keys that it was captured with."""
        return 0 if self.store is None else int(self.store.version)

    def graphed(self, packing: Packing) -> bool:
        """Whether a graph can hold this pass. Outside half precision attention reads lengths on the host."""
        half = next(self.inner.body.parameters()).dtype in HALF
        return half and not len(packing.visible_keys) and self.graphs.fit(len(packing), self.inner.device)

    def pack(self, rows: Rows, where: Tensor) -> tuple[Packing, Callable[[], None]]:
        """The tokens of a pass, and what to call once it has been computed."""
        stops = rows.stop.tolist()
        starts = accumulate(stops, initial=0)
        parts = tuple(Part(start, ((0, stop),), stop) for start, stop in zip(starts, stops, strict=False))
        return self.packing(parts, sum(stops)), lambda: None

    def packing(self, parts: tuple[Part, ...], capacity: int) -> Packing:
        """The packing of these parts, made once."""
        key = (parts, capacity)
        if key not in self.packings:
            if len(self.packings) >= 64:
                self.packings.clear()
            longest = rounded(max(max(part.visible for part in parts), self.bucket - 1))
            most = max(self.widest[0], next_power(len(parts))), max(self.widest[1], longest)
            self.widest, causal = most, self.inner.causal_block
            self.packings[key] = Packing.of(parts, capacity, most, self.bucket, causal)
        return self.packings[key]


# ---------------------------------------------------------------------------------------------- the forward pass
def forward(
    inner: HFDenoiser,
    store: Any,
    longest: tuple[int, int],
    ids: Tensor,
    positions: Tensor,
    queries: Tensor,
    keys: Tensor,
    outputs: Tensor,
    visible_keys: Tensor,
    stored: Tensor,
) -> Tensor:
    """Logits (N, V) at `outputs` of the packed tokens; the tensors are those of `Packing`, on the network's device.

    `store` has keys and values by layer, (places, heads, size): those of this pass are written at `stored`.
    """
    body: Any = inner.body
    joined = _COMPILED.get(body)
    call = decoder_layer if joined is None else _compiled_layer()
    hidden = body.embed_tokens(ids[None])
    rotary = body.rotary_emb(hidden, positions[None])
    fused = is_fused(hidden, visible_keys)
    home = hidden.device if fused else "cpu"  # row by row, the host reads lengths in every layer: sent once
    segments = Segments(queries.int().to(home), keys.int().to(home), *longest)
    # Whether the last layer computes only `outputs`. Not on a GPU without compiling: there every product keeps the
    # shape that it has in the plain network.
    narrow = 0 < len(outputs) <= len(ids) // 2 and (joined is not None or not fused)
    needed = None
    for number, layer in enumerate(body.layers):
        if narrow and number == len(body.layers) - 1:
            needed, order = outputs.sort()
            segments = segments.narrowed(needed)
        kept = None if store is None else (store.keys[number], store.values[number])
        matrices = joined[number] if joined else None
        hidden = call(layer, matrices, hidden, rotary, segments, visible_keys, kept, stored, needed)
    hidden = body.norm(hidden)[0]
    found: Tensor = inner.head(hidden[order.argsort()] if narrow else hidden[outputs])
    return found


def decoder_layer(
    layer: Any,
    joined: JoinedLayer | None,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    segments: Segments,
    visible_keys: Tensor,
    kept: tuple[Tensor, Tensor] | None,
    stored: Tensor,
    needed: Tensor | None,
) -> Tensor:
    """One layer over packed tokens, (1, T, hidden).

    `joined` multiplies by the matrices of queries, keys and values, and of gate and up, at once. `kept` are stored keys
    and values: those of this pass are written at the places `stored`, and attention reads all. With `needed` (N,) only
    these tokens go through the layer and come out; the others give keys and values.
    """
    part = layer.self_attn
    seen = layer.input_layernorm(hidden)
    if joined is not None and joined.attention is not None:
        three = joined.attention(seen)
    else:
        three = [project(seen) for project in (part.q_proj, part.k_proj, part.v_proj)]
    q, k, v = (one.unflatten(-1, (-1, part.head_dim)) for one in three)  # (1, T, heads, size)
    if hasattr(part, "q_norm"):
        q, k = part.q_norm(q), part.k_norm(k)
    size = rotary[0].shape[-1]  # some networks rotate only the first part of each head
    turned = apply_rotary_pos_emb(q[..., :size], k[..., :size], *rotary, unsqueeze_dim=2)
    if size < part.head_dim:
        q, k = (torch.cat([one, whole[..., size:]], -1) for one, whole in zip(turned, (q, k), strict=True))
    else:
        q, k = turned
    q, k, v = q[0], k[0], v[0]
    if kept is not None:
        kept[0].index_copy_(0, stored, k)
        kept[1].index_copy_(0, stored, v)
        k, v = kept
    if needed is not None:
        q, hidden = q[needed], hidden[:, needed]
        visible_keys = visible_keys[needed] if len(visible_keys) else visible_keys
    mixed = attend(q, k, v, segments, visible_keys)
    hidden = hidden + part.o_proj(mixed.flatten(1)[None])
    seen = layer.post_attention_layernorm(hidden)
    if joined is None or joined.mlp is None:
        return cast(Tensor, hidden + layer.mlp(seen))
    gate, up = joined.mlp(seen)
    return cast(Tensor, hidden + layer.mlp.down_proj(layer.mlp.act_fn(gate) * up))


# -------------------------------------------------------------------------------------------------- attention
@dataclass(frozen=True)
class Segments:
    """Which keys each segment of queries sees, as cumulative lengths, and the longest segments."""

    queries: Tensor  # (S + 1,) int32
    keys: Tensor
    longest_query: int
    longest_key: int

    def narrowed(self, outputs: Tensor) -> Segments:
        """The segments where only these queries are left, ascending indices of packed tokens."""
        queries = torch.searchsorted(outputs, self.queries.to(outputs)).int().to(self.queries.device)
        return Segments(queries, self.keys, len(outputs), self.longest_key)


def is_fused(x: Tensor, visible_keys: Tensor) -> bool:
    """Whether one kernel computes the attention of all segments."""
    return x.is_cuda and x.dtype in HALF and not len(visible_keys)


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, visible_keys: Tensor) -> Tensor:
    """Attention of packed queries (T, heads, size) to packed keys and values (K, key heads, size); (T, heads, size).

    `visible_keys` (T,), unless empty, says how many keys of its segment each query sees, from the first one on.
    Attention itself knows no order of tokens, so the query heads that share a key head are passed as further queries.
    """
    groups = q.shape[1] // k.shape[1]
    if not is_fused(q, visible_keys):
        return cast(Tensor, _attend_rows(q, k, v, segments.queries, segments.keys, visible_keys, groups))
    from torch.nn.attention.varlen import varlen_attn

    q = q.unflatten(1, (-1, groups)).transpose(1, 2).flatten(0, 1)  # (T * groups, key heads, size)
    bounds = segments.queries * groups, segments.keys
    longest = segments.longest_query * groups, segments.longest_key
    mixed = varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), *bounds, *longest)
    return _ungrouped(cast(Tensor, mixed), groups)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, visible_keys: Tensor, groups: int
) -> Tensor:
    """Attention segment by segment; the lengths are read on the host."""
    segments = zip(pairwise(queries.tolist()), pairwise(keys.tolist()), strict=True)
    parts = [
        _attend_segment(q[a:b], k[c:d], v[c:d], visible_keys[a:b], groups)
        for (a, b), (c, d) in segments
        if b > a
    ]
    return torch.cat(parts)


def _attend_segment(q: Tensor, k: Tensor, v: Tensor, visible_keys: Tensor, groups: int) -> Tensor:
    """Attention of one segment, (n, heads, size)."""
    q = q.unflatten(1, (-1, groups)).transpose(1, 2).flatten(0, 1)
    visible_keys = visible_keys.repeat_interleave(groups)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # (1, key heads, n, size)
    sees = torch.arange(k.shape[2], device=k.device) < visible_keys[:, None] if len(visible_keys) else None
    mixed = scaled_dot_product_attention(q, k, v, attn_mask=sees)[0].transpose(0, 1)
    return _ungrouped(mixed, groups)


def _ungrouped(mixed: Tensor, groups: int) -> Tensor:
    """(T * groups, key heads, size) as (T, heads, size)."""
    return mixed.reshape(-1, groups, *mixed.shape[1:]).transpose(1, 2).flatten(1, 2)


def kernel_exists() -> bool:
    """Whether this torch and this GPU have the variable-length kernel."""
    found = find_spec("torch.nn.attention.varlen") is not None
    return found and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


# ------------------------------------------------------------------------------------------ attention for training
NAME = "voidpad_varlen"  # of the attention function that transformers' own forward may use


def _varlen_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention over packed rows as transformers calls it: (1, heads, T, size) in, (1, T, heads, size) out.

    Lengths of queries count every query head that shares a key head: they are more queries of it.
    """
    # As torch's own attention does: the positions' rotation made queries and keys float32.
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    q = query[0].unflatten(0, (-1, groups)).permute(2, 1, 0, 3).flatten(0, 1)  # (T * groups, key heads, size)
    k, v = (x[0].transpose(0, 1) for x in (key, value))
    queries, keys = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    segments = Segments(queries.int(), keys.int(), kwargs["max_length_q"], kwargs["max_length_k"])
    mixed = attend(q, k, v, segments, queries[:0])
    return _ungrouped(mixed, groups)[None], None


ALL_ATTENTION_FUNCTIONS.register(NAME, _varlen_attention)


# ------------------------------------------------------------------------------------------------------ compiling
class Joined(nn.Module):
    """Linear layers with the same input as one product; the weights of the layers become views of the joined ones."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self.sizes = [layer.weight.shape[0] for layer in layers]
        self.inner = copy.copy(layers[0])  # of the same kind, with tensors of its own
        self.inner._parameters, self.inner._buffers = {}, {}
        # Float8 weights have a `scale` for each output.
        for name, axis in (("weight", 0), ("bias", 0), ("scale", 1)):
            parts = [part for layer in layers if (part := getattr(layer, name, None)) is not None]
            # As bytes where the numbers are bytes: not every operation knows float8.
            joined = [
                part.detach().view(torch.uint8) if part.element_size() == 1 else part.detach()
                for part in parts
            ]
            whole = torch.cat(joined, axis).view(parts[0].dtype) if parts else None
            for part, view in zip(parts, () if whole is None else whole.split(self.sizes, axis), strict=True):
                part.data = view
            if name == "scale" and whole is not None:
                self.inner.register_buffer(name, whole)
            elif name != "scale":
                frozen = None if whole is None else nn.Parameter(whole, requires_grad=False)
                self.inner.__dict__.pop(name, None)  # a layer may keep a bias of None as a plain attribute
                self.inner.register_parameter(name, frozen)

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        return cast(Sequence[Tensor], self.inner(x).split(self.sizes, -1))


class JoinedLayer(nn.Module):
    """The joined products of a layer; None where its matrices are not plain ones (adapters, experts)."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.attention = self._join(layer.self_attn, ("q_proj", "k_proj", "v_proj"))
        self.mlp = self._join(layer.mlp, ("gate_proj", "up_proj"))

    @staticmethod
    def _join(owner: nn.Module, names: Sequence[str]) -> Joined | None:
        parts = [getattr(owner, name, None) for name in names]
        joins = type(parts[0]) is nn.Linear or getattr(parts[0], "joins", False)
        joins = joins and all(type(part) is type(parts[0]) for part in parts)
        return Joined(parts) if joins else None


_COMPILED: WeakKeyDictionary[nn.Module, Sequence[JoinedLayer | None]] = WeakKeyDictionary()


@torch.inference_mode(False)
@torch.no_grad()
def compile_body(body: nn.Module) -> None:
    """From now on, compute packed passes of this network by compiled layers, on a GPU with joined matrices.

    Norms, rotary embedding and gating fuse; the function computed stays the same up to rounding. Layers are compiled at
    their first passes, all of them by the same code. No weight is there twice: the network's own become views.
    """
    layers: Any = body.layers
    on_gpu = next(body.parameters()).is_cuda
    # Layers are compiled anew for passes with and without a store and for the last layer, and so is every network.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    _COMPILED[body] = [JoinedLayer(layer) if on_gpu else None for layer in layers]


def is_compiled(body: nn.Module) -> bool:
    """Whether packed passes of this network are computed by compiled layers."""
    return body in _COMPILED


@cache
def _compiled_layer() -> Callable[..., Tensor]:
    return cast(Callable[..., Tensor], torch.compile(decoder_layer, dynamic=True))


def compile_layers(body: nn.Module, **options: Any) -> None:
    """Compile the layers of transformers' own forward pass, for training: in place, at their first pass.

    `options` go to torch.compile. Norms, rotary embedding and gating fuse; the function computed stays the same.
    """
    layers: Any = body.layers
    for layer in layers:
        layer.compile(**options)
