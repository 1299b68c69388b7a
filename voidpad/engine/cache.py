"""Key-value caches for block decoding.

A row's first pass computes it whole and stores its keys and values. Further passes compute what the policy
(`cache_policy.py`) says and read the rest from the store. Rows at either stage share one packed pass (`packed.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.rows import Rows, first
from voidpad.engine.cache_policy import CachedRow, CachePolicy, Caching, Range
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import PackedDenoiser, Packing, Part

GROWTH = 128  # tokens: the arena grows in multiples of it


class CachedDenoiser(PackedDenoiser):
    """A packed denoiser that recomputes only part of a row in the further passes over a block.

    Rows are known by their handles. A row in its first pass is computed whole, whatever is stored under its handle.
    """

    store: Arena

    def __init__(
        self,
        inner: HFDenoiser,
        block: int,
        policy: Caching | None = None,
        *,
        bucket: int = 1,
        graphs: Graphs | None = None,
    ) -> None:
        super().__init__(inner, bucket, graphs or Graphs(), Arena.of(inner.body, filler=bucket))
        self.block, self.policy = block, policy or CachePolicy()
        self.entries: dict[int, CachedRow] = {}  # by handle, rows as of their last good pass

    def pack(self, rows: Rows, where: Tensor) -> tuple[Packing, Callable[[], None]]:
        """The tokens of a pass, and what to call once it has been computed: only then do `entries` say what is stored,
        so that nothing of a failed pass is reused."""
        handles, now = rows.handle.tolist(), self._cached_rows(rows, where)
        try:
            if self.store.reserve({handle: row.stop for handle, row in zip(handles, now, strict=True)}):
                self.graphs.forget()
        except Exception:
            self.clear()  # out of memory, with half of the layers moved
            raise
        parts = tuple(self._part(handle, row) for handle, row in zip(handles, now, strict=True))
        return self.packing(parts, self.store.capacity), lambda: self.entries.update(
            zip(handles, now, strict=True)
        )

    def forget(self, handle: int) -> None:
        """Free the place of a row that ended."""
        self.entries.pop(handle, None)
        self.store.release(handle)

    def clear(self) -> None:
        """Forget every row and free the memory."""
        self.graphs.forget()
        self.store = Arena.of(self.inner.body, filler=self.bucket)
        self.entries, self.packings, self.widest = {}, {}, (1, 1)

    def _cached_rows(self, rows: Rows, where: Tensor) -> list[CachedRow]:
        """The rows as they are now, each with the age of its stored keys, which are forgotten if they do not serve.

        A probe, or a caller who observes, also reads slots outside the open block: such a pass computes the whole row.
        Causal blocks count from position 0. With a shift, the open one is that of the positions that give the logits.
        """
        causal = bool(self.inner.causal_block)
        back = self.inner.shift if causal else 0
        numbers = (
            rows.handle,
            first(where, otherwise=rows.prompt),  # the slots that are asked for: the first one,
            where.shape[1] - where.flip(1).int().argmax(1),  # and where the last one ends
            rows.prompt,
            rows.stop,
            torch.minimum(rows.first_mask, rows.block_start),  # a full block may be edited until it is left
            rows.decoded + rows.probed,
        )
        found, columns = [], (part.tolist() for part in numbers)
        for handle, begin, end, prompt, stop, final, passes in zip(*columns, strict=True):
            origin = 0 if causal else prompt
            start = origin + (begin - back - origin) // self.block * self.block
            inside = end - back <= start + self.block
            until = min(start + self.block, stop) if inside else stop
            stored = self.entries.get(handle)
            row = CachedRow(prompt, start, until, stop, final, age=stored.age + 1 if stored else 0)
            if stored and not (inside and passes and self.policy.serves(stored, row)):
                del self.entries[handle]
                row = replace(row, age=0)
            found.append(row)
        return found

    def _part(self, handle: int, row: CachedRow) -> Part:
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
        return Part(self.store.places[handle].start, tuple(ranges), visible)


class Arena:
    """Keys and values of many rows, each in a place of exactly its own size.

    After the `capacity` tokens of all rows there is room for the filler of a pass (`Packing`), which nobody reads.
    torch's paged attention (`varlen_attn(block_table=...)`) came with torch 2.12 and needs FlashAttention 3 beside
    torch, so rows have one place each instead of pages.
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
        """Give each of these rows a place of its size. True if the tensors are new ones, which no graph knows.

        A row that has such a place keeps its keys; a row whose size has changed loses them.
        """
        missing = [handle for handle, size in sizes.items() if len(self.places.get(handle, ())) != size]
        for handle in missing:
            self.release(handle)
        for handle in missing:
            begin = self._hole(sizes[handle])
            if begin is None:
                return self._rearrange({row: len(place) for row, place in self.places.items()} | dict(sizes))
            self.places[handle] = range(begin, begin + sizes[handle])
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
        """Lay all rows end to end, with the keys that they have, in a larger arena if they need one."""
        needed, capacity = sum(sizes.values()), self.capacity
        if needed > capacity:  # with a tenth to spare: growing copies all
            capacity = -(-(needed + needed // 10) // GROWTH) * GROWTH
        order = sorted(sizes, key=lambda row: self.places.get(row, range(capacity, capacity)).start)
        ends = accumulate(sizes[row] for row in order)
        places = {row: range(end - sizes[row], end) for row, end in zip(order, ends, strict=True)}
        kept = [row for row in order if row in self.places]  # these have the same size as before
        source, target = (
            torch.tensor([at for row in kept for at in side[row]], dtype=torch.long)
            for side in (self.places, places)
        )
        grows = capacity > self.capacity
        self.capacity, self.version, self.places = capacity, self.version + grows, places
        for part in (self.keys, self.values):
            for layer, old in enumerate(part):  # one at a time: there may not be room for all of them twice
                stored = old[source.to(old.device)]
                if grows:
                    part[layer] = old.new_zeros(self.capacity + self.filler, *old.shape[1:])
                part[layer].index_copy_(0, target.to(old.device), stored)
        return grows
