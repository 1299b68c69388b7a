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
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.rows import Rows, horizon
from voidpad.engine.cache_policy import Range
from voidpad.engine.graphs import Graphs, run

HALF = (torch.float16, torch.bfloat16)
MULTIPROCESSORS = 132  # of a GPU, about


# ------------------------------------------------------------------------------------------- what a pass computes
@dataclass(frozen=True)
class Part:
    """What a pass computes of one row: these ranges of positions, which see the row's keys up to `visible`."""

    place: int  # where the row's keys begin among all keys
    ranges: tuple[Range, ...]
    visible: int


@dataclass(frozen=True)
class Packing:
    """The tokens of a pass, laid end to end in one sequence, and the keys that they see.

    A segment of filler brings the sequence to a multiple of the bucket. Most packings hold for several passes.
    """

    row: Tensor  # (T,) the packed tokens, without the filler
    column: Tensor  # (T,)
    index: Tensor  # (B, L) where each token is in the sequence; -1 for those that are not computed
    positions: Tensor  # (T + filler,)
    queries: Tensor  # (S + 1,) where each segment of tokens begins
    keys: Tensor  # (S + 1,) where the keys that it sees begin
    # Longest segment of tokens and of keys, rounded up so that CUDA graphs fit more often.
    longest: tuple[int, int]
    # (T + filler,) how many keys of its segment, from the first one on, each token sees; empty if it sees all of them
    horizons: Tensor
    stored: Tensor  # (T + filler,) places of the keys of this pass

    @classmethod
    def of(
        cls, parts: Sequence[Part], capacity: int, widest: tuple[int, int], bucket: int, causal: int
    ) -> Packing:
        """The tokens of these parts in the order of their places; all places together have `capacity` keys.

        `widest` are the most rows and the most keys of a row that the packing must seem to have.
        """
        order = sorted(range(len(parts)), key=lambda number: parts[number].place)
        counts = [sum(end - begin for begin, end in parts[number].ranges) for number in order]
        column = torch.cat([torch.arange(*span) for number in order for span in parts[number].ranges])
        row = torch.tensor(order).repeat_interleave(torch.tensor(counts))
        index = torch.full((len(parts), max(part.visible for part in parts)), -1)
        index[row, column] = torch.arange(len(row))
        spare = -len(row) % bucket
        filler = torch.arange(spare)
        # Attention reads segments of keys: a row's visible keys, and before each row what nobody reads now.
        queries, keys, reached = [0], [0], 0
        for number, count in zip(order, counts, strict=True):
            queries += [0, count]
            keys += [parts[number].place - reached, parts[number].visible]
            reached = parts[number].place + parts[number].visible
        empty = [0] * (2 * (widest[0] - len(parts)))
        queries += [*empty, 0, spare]
        keys += [*empty, capacity - reached, spare]
        positions, horizons = torch.cat([column, filler]), filler[:0]
        places, ends = (
            torch.tensor([getattr(part, name) for part in parts]) for name in ("place", "visible")
        )
        if causal and bool((horizon(column, causal) < ends[row]).any()):
            horizons = horizon(positions, causal)
        return cls(
            row=row,
            column=column,
            index=index,
            positions=positions,
            queries=torch.tensor(queries).cumsum(0),
            keys=torch.tensor(keys).cumsum(0),
            longest=(rounded(max(*counts, spare)), widest[1]),
            horizons=horizons,
            stored=torch.cat([places[row] + column, capacity + filler]),
        )

    def __len__(self) -> int:
        return len(self.positions)

    def source(self, columns: int) -> Tensor:
        """Where the packed tokens are in ids (B, columns) laid flat; the filler takes the first one's."""
        return pad(self.row * columns + self.column, (0, len(self) - len(self.row)))

    def inputs(self, rows: Rows, where: Tensor, shift: int) -> NetworkInputs:
        """What `forward` takes for these rows; the logits at the slots `where` (B, L) come out."""
        ids = pad(rows.ids[self.row, self.column], (0, len(self) - len(self.row)), value=rows.roles.eos)
        row, column = where.nonzero(as_tuple=True)
        outputs = self.index[row, column - shift]
        assert bool((outputs >= 0).all())  # the packing left out a slot that is asked for
        return NetworkInputs(
            ids, self.positions, self.queries, self.keys, outputs, self.horizons, self.stored
        )


class NetworkInputs(NamedTuple):
    """The tensors of one pass. Those of `Packing` hold for several passes."""

    ids: Tensor  # (T + filler,)
    positions: Tensor
    queries: Tensor
    keys: Tensor
    outputs: Tensor  # (N,) the packed tokens whose logits come out
    horizons: Tensor
    stored: Tensor


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
        inputs, device = packing.inputs(rows, where, self.inner.shift), self.inner.device

        def call(*tensors: Tensor) -> Tensor:
            return forward(self.inner, self.store, packing.longest, *tensors)

        if self.graphed(packing):
            count = len(inputs.outputs)
            spare = max(32, next_power(count)) - count  # few different shapes: few graphs
            inputs = inputs._replace(outputs=pad(inputs.outputs, (0, spare), value=len(packing) - 1))
            found = self.graphs(call, inputs, device, key=(packing.longest, self.version))[:count]
        else:
            found = run(call, inputs, device)
        done()
        return found

    @property
    def version(self) -> int:
        """Changes when a graph may no longer read the keys that it was captured with."""
        return 0 if self.store is None else int(self.store.version)

    def graphed(self, packing: Packing) -> bool:
        """Whether a graph can hold this pass. Outside half precision attention reads lengths on the host."""
        half = next(self.inner.body.parameters()).dtype in HALF
        return half and not len(packing.horizons) and self.graphs.fit(len(packing), self.inner.device)

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
    horizons: Tensor,
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
    fused = hidden.is_cuda and hidden.dtype in HALF and not len(horizons)
    spans = Spans.of(queries, keys, longest, on_host=not fused)
    # Attention in parts rounds differently, so it is for compiled passes only.
    heads = body.config.num_attention_heads, body.config.num_key_value_heads
    parts = split_count(spans, heads) if fused and joined is not None else 1
    spans = spans.split(len(ids), heads[0] // heads[1], parts)
    # Not on a GPU without compiling: there every product keeps the shape that it has in the plain network.
    few = 0 < len(outputs) <= len(ids) // 2 and (joined is not None or not fused)
    needed = None
    for number, layer in enumerate(body.layers):
        if few and number == len(body.layers) - 1:
            needed, order = outputs.sort()
            spans = spans.narrowed(needed).split(len(needed), heads[0] // heads[1], parts)
        kept = None if store is None else (store.keys[number], store.values[number])
        matrices = joined[number] if joined else None
        hidden = call(layer, matrices, hidden, rotary, spans, horizons, kept, stored, needed)
    hidden = body.norm(hidden)[0]
    found: Tensor = inner.head(hidden[order.argsort()] if few else hidden[outputs])
    return found


def decoder_layer(
    layer: Any,
    joined: JoinedLayer | None,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    spans: Spans,
    horizons: Tensor,
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
        horizons = horizons[needed] if len(horizons) else horizons
    mixed = attend(q, k, v, spans, horizons)
    hidden = hidden + part.o_proj(mixed.flatten(1)[None])
    seen = layer.post_attention_layernorm(hidden)
    if joined is None or joined.mlp is None:
        return cast(Tensor, hidden + layer.mlp(seen))
    gate, up = joined.mlp(seen)
    return cast(Tensor, hidden + layer.mlp.down_proj(layer.mlp.act_fn(gate) * up))


# -------------------------------------------------------------------------------------------------- attention
@dataclass(frozen=True)
class Spans:
    """Which keys each segment of queries sees, as cumulative lengths, and the longest segments."""

    queries: Tensor  # (S + 1,) int32
    keys: Tensor
    longest_query: int
    longest_key: int
    # Queries and keys as numbers, where no kernel reads them.
    on_host: tuple[tuple[int, ...], tuple[int, ...]] | None
    parts: KeyParts | None = None  # where the keys of a segment are read in several parts

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, longest: tuple[int, int], *, on_host: bool) -> Spans:
        numbers = (tuple(queries.tolist()), tuple(keys.tolist())) if on_host else None
        return cls(queries.int(), keys.int(), *longest, numbers)

    def narrowed(self, outputs: Tensor) -> Spans:
        """The spans where only these queries are left, ascending indices of packed tokens."""
        queries = torch.searchsorted(outputs, self.queries.to(outputs.dtype)).int()
        numbers = None if self.on_host is None else (tuple(queries.tolist()), self.on_host[1])
        return Spans(queries, self.keys, len(outputs), self.longest_key, numbers)

    def split(self, tokens: int, groups: int, parts: int) -> Spans:
        """The spans of so many tokens with the keys of every segment in so many parts."""
        if parts == 1:
            return self
        return replace(self, parts=KeyParts.of(self.queries * groups, self.keys, tokens * groups, parts))


@dataclass(frozen=True)
class KeyParts:
    """Each segment's keys divided into parts, and its queries repeated for every part.

    With few queries a GPU would read all keys of a head by one multiprocessor; in parts it reads them by several.
    """

    queries: Tensor  # (S * parts + 1,) int32, cumulative lengths of the repeated queries
    keys: Tensor
    source: Tensor  # (T * parts,) the query that each repeated one is
    places: Tensor  # (T, parts) where the repetitions of each query are

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, tokens: int, parts: int) -> KeyParts:
        """The parts of these segments, given as cumulative lengths of `tokens` queries and of keys."""
        number = torch.arange(parts, device=queries.device)
        starts, sizes, widths = queries[:-1], queries.diff(), keys.diff()
        firsts = starts[:, None] * parts + sizes[:, None] * number
        begins = keys[:-1, None] + widths[:, None] * number // parts
        # The segment of each repeated query and of each query; segments without queries have none.
        repeated = torch.arange(tokens * parts, device=queries.device)
        segment = torch.searchsorted(queries * parts, repeated, right=True) - 1
        source = starts[segment] + (repeated - starts[segment] * parts) % sizes[segment]
        token = repeated[:tokens]
        segment = torch.searchsorted(queries, token, right=True) - 1
        places = firsts[segment] + (token - starts[segment])[:, None]
        all_queries = torch.cat([firsts.flatten(), queries[-1:] * parts]).int()
        all_keys = torch.cat([begins.flatten(), keys[-1:]]).int()
        return cls(all_queries, all_keys, source, places)

    def combined(self, mixed: Tensor, weight: Tensor) -> Tensor:
        """The attention of whole segments, from that of the parts (T * parts, heads, size).

        `weight` (heads, T * parts) is the logarithm of each part's sum of exponentials; torch has infinity for no keys.
        """
        weight = torch.where(weight.isinf(), -torch.inf, weight.float()).T[self.places]  # (T, parts, heads)
        share = weight.softmax(1)[..., None]
        return (mixed[self.places].float() * share).sum(1).to(mixed.dtype)


def split_count(spans: Spans, heads: tuple[int, int]) -> int:
    """In how many parts keys are read: enough to give work to every multiprocessor, at most one for 64 keys."""
    tiles = (
        -(-spans.longest_query * (heads[0] // heads[1]) // 128)
        * heads[1]
        * max(len(spans.queries) // 2 - 1, 1)
    )
    return max(1, min(MULTIPROCESSORS // tiles, spans.longest_key // 64, 8))


def attend(q: Tensor, k: Tensor, v: Tensor, spans: Spans, horizons: Tensor) -> Tensor:
    """Attention of packed queries (T, heads, size) to packed keys and values (K, key heads, size); (T, heads, size).

    Where there are `horizons` (T,), a query sees only so many keys of its segment, the first ones. No token is told
    from its neighbours by order, so query heads that share a key head are simply more queries of it.
    """
    groups = q.shape[1] // k.shape[1]
    if spans.on_host is None:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        q = q.unflatten(1, (-1, groups)).transpose(1, 2).flatten(0, 1)  # (T * groups, key heads, size)
        k, v = k.contiguous(), v.contiguous()
        longest = spans.longest_query * groups, spans.longest_key
        if spans.parts is None:
            mixed = varlen_attn(q.contiguous(), k, v, spans.queries * groups, spans.keys, *longest)
        else:
            parts, aux = spans.parts, AuxRequest(lse=True)
            given = parts.queries, parts.keys, *longest
            mixed = parts.combined(*varlen_attn(q[parts.source], k, v, *given, return_aux=aux))
        return _ungrouped(cast(Tensor, mixed), groups)
    return cast(Tensor, _attend_rows(q, k, v, spans.on_host, horizons, groups))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, spans: tuple[tuple[int, ...], ...], horizons: Tensor, groups: int
) -> Tensor:
    parts = [
        _attend_segment(q[a:b], k[c:d], v[c:d], horizons[a:b], groups)
        for (a, b), (c, d) in zip(*map(pairwise, spans), strict=True)
        if b > a
    ]
    return torch.cat(parts)


def _attend_segment(q: Tensor, k: Tensor, v: Tensor, horizons: Tensor, groups: int) -> Tensor:
    """Attention of one segment, (n, heads, size)."""
    q = q.unflatten(1, (-1, groups)).transpose(1, 2).flatten(0, 1)
    horizons = horizons.repeat_interleave(groups)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # (1, key heads, n, size)
    sees = torch.arange(k.shape[2], device=k.device) < horizons[:, None] if len(horizons) else None
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
    bounds = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    longest = kwargs["max_length_q"], kwargs["max_length_k"]
    spans = Spans.of(*bounds, longest, on_host=not (q.is_cuda and q.dtype in HALF))
    mixed = attend(q, k, v, spans, bounds[0][:0])
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
        for name, axis in (
            ("weight", 0),
            ("bias", 0),
            ("scale", 1),
        ):  # `scale`: float8 weights have one an output
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
        joins = all(type(part) is nn.Linear or getattr(part, "joins", False) for part in parts)
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
