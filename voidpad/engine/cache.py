"""Key-value caches for block decoding.

A row's first pass computes it whole and stores its keys and values. Further passes compute what the policy
(`cache_policy.py`) says and read the rest from the store. Rows at either stage share one packed pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from voidpad.decode.canvas import Canvas, first
from voidpad.decode.causal import horizon
from voidpad.decode.denoise import HFDenoiser
from voidpad.engine.cache_policy import CachedRow, CachePolicy, Caching, Range
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import Packing, logits, next_power, rounded

STEP = 128  # tokens: the arena grows in multiples of it


@dataclass(frozen=True)
class _Layout:
    """Which tokens of which rows make up a pass and where their keys are stored. Most hold for several passes."""

    row: Tensor  # (T,) the packed tokens, without the filler
    column: Tensor
    spare: int
    positions: Tensor
    horizons: Tensor  # empty if every token sees all keys of its row, as inside one causal block
    queries: Tensor
    keys: Tensor
    index: Tensor  # (B, L) where each token of this pass is in the packed sequence; -1 for the others
    longest: tuple[int, int]
    stored: Tensor  # the arena's indices for the keys of this pass


@dataclass(frozen=True)
class _Part:
    """What a pass computes of one row: these ranges of positions, which see the keys of its place up to `visible`."""

    place: int  # where its place in the arena begins
    ranges: tuple[Range, ...]
    visible: int


@dataclass
class CachedDenoiser:
    """A denoiser around a Hugging Face one that recomputes only part of a row inside a block.

    Rows are known by their handles. A handle that comes back with another prompt is computed anew.
    """

    inner: HFDenoiser
    block: int
    policy: Caching = CachePolicy()
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)
    store: Arena = field(init=False)
    entries: dict[int, CachedRow] = field(default_factory=dict)  # by handle, rows as of their last good pass
    prompts: dict[int, Tensor] = field(default_factory=dict)
    layouts: dict[Any, _Layout] = field(default_factory=dict)
    widest: tuple[int, int] = (1, 1)  # most rows and most keys of a row so far; it only grows: graphs fit on

    def __post_init__(self) -> None:
        self.store = Arena.of(self.inner.body, filler=self.bucket)

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        packing, done = self.pack(canvas, where)
        result = logits(self.inner, packing, self.graphs, store=self.store, version=self.store.version)
        done()
        return result

    def pack(self, canvas: Canvas, where: Tensor) -> tuple[Packing, Callable[[], None]]:
        """The tokens of a pass, and what to call once it has been computed: a failed pass leaves nothing to reuse."""
        handles, rows = canvas.handle.tolist(), self._rows(canvas, where)
        self._reserve({handle: row.stop for handle, row in zip(handles, rows, strict=True)})
        parts = tuple(self._part(handle, row) for handle, row in zip(handles, rows, strict=True))
        key = (parts, self.store.capacity)
        if key not in self.layouts:
            if len(self.layouts) >= 64:
                self.layouts.clear()
            self.layouts[key] = self._lay_out(parts)
        layout = self.layouts[key]
        row, column = where.nonzero(as_tuple=True)
        outputs = layout.index[row, column - self.inner.shift]
        assert bool((outputs >= 0).all())  # the policy left out a slot that is asked for
        packing = Packing(
            ids=pad(canvas.ids[layout.row, layout.column], (0, layout.spare), value=canvas.roles.eos),
            positions=layout.positions,
            queries=layout.queries,
            keys=layout.keys,
            outputs=outputs,
            longest=layout.longest,
            horizons=layout.horizons,
            stored=layout.stored,
        )
        return packing, lambda: self.entries.update(zip(handles, rows, strict=True))

    def forget(self, handle: int) -> None:
        """Free the place of a row that ended."""
        self.entries.pop(handle, None)
        self.prompts.pop(handle, None)
        self.store.release(handle)

    def clear(self) -> None:
        """Forget every row and free the memory."""
        self.graphs.forget()
        self.store = Arena.of(self.inner.body, filler=self.bucket)
        self.entries, self.prompts, self.layouts, self.widest = {}, {}, {}, (1, 1)

    def _rows(self, canvas: Canvas, where: Tensor) -> list[CachedRow]:
        """The rows as they are now, each with the age of its stored keys, which are forgotten if they do not serve.

        A probe, or a caller who observes, also reads slots outside the open block: such a pass computes the whole row.
        Causal blocks count from position 0, and theirs is the block of the positions that give the logits.
        """
        causal = bool(self.inner.causal_block)
        back = self.inner.shift if causal else 0
        first_wanted = first(where, otherwise=canvas.prompt).tolist()
        last_wanted = (where.shape[1] - where.flip(1).int().argmax(1)).tolist()
        first_mask = first(canvas.masked, otherwise=canvas.stop)
        numbers = (canvas.handle, canvas.prompt, canvas.stop, canvas.masked.sum(1), first_mask)
        rows = []
        for number, (handle, prompt, stop, masks, ahead) in enumerate(
            zip(*(part.tolist() for part in numbers), strict=True)
        ):
            origin, begin = 0 if causal else prompt, first_wanted[number] - back
            start = origin + (begin - origin) // self.block * self.block
            inside = last_wanted[number] - back <= start + self.block
            stored = self.entries.get(handle)
            row = CachedRow(
                prompt,
                start,
                min(start + self.block, stop) if inside else stop,
                stop,
                masks,
                ahead,
                age=stored.age + 1 if stored else 0,
            )
            if stored and not (inside and self._serves(handle, stored, row, canvas.ids[number, :prompt])):
                del self.entries[handle]
                stored, row = None, replace(row, age=0)
            if stored is None:
                self.prompts[handle] = canvas.ids[number, :prompt]
            rows.append(row)
        return rows

    def _serves(self, handle: int, stored: CachedRow, now: CachedRow, prompt: Tensor) -> bool:
        """Whether the stored keys are of this row, which has come on since, and the policy may read them."""
        if stored.prompt != now.prompt or stored.masks < now.masks or not self.policy.serves(stored, now):
            return False
        # A row that has not come on may be another one with the same handle, from its start.
        return stored.masks > now.masks or torch.equal(self.prompts[handle], prompt)

    def _reserve(self, sizes: Mapping[int, int]) -> None:
        """Make room for the keys of these rows. The keys of a row that is computed whole need not be moved."""
        for handle, size in sizes.items():
            if handle not in self.entries and len(self.store.places.get(handle, ())) != size:
                self.store.release(handle)
        try:
            if self.store.reserve(sizes):
                self.graphs.forget()
        except Exception:
            self.clear()  # out of memory, with half of the layers moved
            raise

    def _part(self, handle: int, row: CachedRow) -> _Part:
        """What this pass computes of a row."""
        visible, stored = self.policy.visible(row), self.entries.get(handle)
        ranges: list[Range] = []
        for begin, end in [(0, visible)] if stored is None else self.policy.recomputed(stored, row):
            # The logits of a slot come from the position before it, which in causal blocks is in the open block.
            if self.inner.shift and not self.inner.causal_block:
                begin = max(begin - 1, 0)
            if ranges and begin <= ranges[-1][1]:
                begin, end = ranges[-1][0], max(end, ranges.pop()[1])
            ranges.append((begin, min(end, visible)))
        return _Part(self.store.places[handle].start, tuple(ranges), visible)

    def _lay_out(self, parts: Sequence[_Part]) -> _Layout:
        """The tokens of a pass in the order of their rows' places, and the keys that they see."""
        capacity = self.store.capacity
        order = sorted(range(len(parts)), key=lambda number: parts[number].place)
        counts = [sum(end - begin for begin, end in parts[number].ranges) for number in order]
        column = torch.cat([torch.arange(*span) for number in order for span in parts[number].ranges])
        row = torch.tensor(order).repeat_interleave(torch.tensor(counts))
        index = torch.full((len(parts), max(part.visible for part in parts)), -1)
        index[row, column] = torch.arange(len(row))
        spare = -len(row) % self.bucket
        filler = torch.arange(spare)
        visible = [parts[number].visible for number in order]
        fitting = next_power(len(parts)), rounded(max(*visible, spare))
        self.widest = most, longest = max(self.widest[0], fitting[0]), max(self.widest[1], fitting[1])
        # Attention reads segments of the arena: a row's visible keys, and before each row what nobody reads now.
        queries, keys, reached = [0], [0], 0
        for number, count, seen in zip(order, counts, visible, strict=True):
            queries += [0, count]
            keys += [parts[number].place - reached, seen]
            reached = parts[number].place + seen
        empty = [0] * (2 * (most - len(parts)))
        queries += [*empty, 0, spare]
        keys += [*empty, capacity - reached, spare]
        positions, horizons = torch.cat([column, filler]), filler[:0]
        causal = self.inner.causal_block
        ends = torch.tensor([part.visible for part in parts])
        if causal and bool((horizon(column, causal) < ends[row]).any()):
            horizons = horizon(positions, causal)
        places = torch.tensor([part.place for part in parts])
        return _Layout(
            row=row,
            column=column,
            spare=spare,
            positions=positions,
            horizons=horizons,
            queries=torch.tensor(queries).cumsum(0),
            keys=torch.tensor(keys).cumsum(0),
            index=index,
            longest=(rounded(max(*counts, spare)), longest),
            stored=torch.cat([places[row] + column, capacity + filler]),
        )


class Arena:
    """Keys and values of many rows, each in a place of exactly its own size.

    The tokens beyond `capacity` take a pass's filler, which nobody reads. torch's paged attention
    (`varlen_attn(block_table=...)`) came with torch 2.12 and needs FlashAttention 3 beside torch, so rows have one
    place each instead of pages.
    """

    def __init__(self, layers: int, heads: int, size: int, *, like: Tensor, filler: int = 0) -> None:
        """An empty arena for keys and values with the dtype and on the device of `like`."""
        self.capacity, self.filler = 0, filler
        self.keys, self.values = ([like.new_zeros(0, heads, size) for _ in range(layers)] for _ in range(2))
        self.version = 0  # counts reallocations
        self.places: dict[int, range] = {}  # by the row's handle

    @classmethod
    def of(cls, body: Any, *, filler: int) -> Arena:
        """An empty arena for this network."""
        heads, size = body.config.num_key_value_heads, body.layers[0].self_attn.head_dim
        return cls(len(body.layers), heads, size, like=body.embed_tokens.weight.detach(), filler=filler)

    def reserve(self, sizes: Mapping[int, int]) -> bool:
        """Give each of these rows a place of its size, with the keys that it has. True if the tensors moved."""
        for handle, size in sizes.items():
            place = self.places.get(handle)
            if place is not None and len(place) == size:
                continue
            begin = self._hole(size)
            if begin is None:
                return self._rearrange({row: len(place) for row, place in self.places.items()} | dict(sizes))
            self._move({handle: range(begin, begin + size)})
        return False

    def release(self, handle: int) -> None:
        """Free the place of a row, if it has one."""
        self.places.pop(handle, None)

    def _hole(self, size: int) -> int | None:
        """Where the smallest sufficient hole between the places begins; None if all are too small."""
        places = sorted(self.places.values(), key=lambda place: place.start)
        edges = zip(
            [0, *(place.stop for place in places)],
            [*(place.start for place in places), self.capacity],
            strict=True,
        )
        return min(((b - a, a) for a, b in edges if b - a >= size), default=(0, None))[1]

    def _rearrange(self, sizes: Mapping[int, int]) -> bool:
        """Lay all rows end to end, in a larger arena if they need one."""
        needed, capacity = sum(sizes.values()), self.capacity
        if needed > capacity:  # with a tenth to spare: growing copies all
            capacity = -(-(needed + needed // 10) // STEP) * STEP
        places, begin = {}, 0
        for handle in sorted(sizes, key=lambda row: self.places.get(row, range(capacity, capacity)).start):
            places[handle] = range(begin, begin + sizes[handle])
            begin += sizes[handle]
        grows = capacity > self.capacity
        self.capacity, self.version = capacity, self.version + grows
        self._move(places, grows=grows)
        return grows

    def _move(self, places: Mapping[int, range], *, grows: bool = False) -> None:
        """Give rows new places and take their keys along, into new tensors if the arena grows."""
        pairs = [(self.places[row], place) for row, place in places.items() if row in self.places]
        self.places |= places
        if not (pairs or grows):
            return
        sizes = [min(len(old), len(new)) for old, new in pairs]
        source, target = (
            torch.cat(
                [torch.arange(0), *(_head(place, size) for place, size in zip(side, sizes, strict=True))]
            )
            for side in (zip(*pairs, strict=True) if pairs else ((), ()))
        )
        for part in (self.keys, self.values):
            for layer, old in enumerate(part):  # one at a time: there may not be room for all of them twice
                kept = old[source.to(old.device)]
                if grows:
                    part[layer] = old.new_zeros(self.capacity + self.filler, *old.shape[1:])
                part[layer].index_copy_(0, target.to(old.device), kept)


def _head(place: range, size: int) -> Tensor:
    """The first indices of a place."""
    return torch.arange(place.start, place.start + size)
