"""Where a cache keeps keys and values: one arena for all rows, each in a place of exactly its own size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

STEP = 128  # tokens: the arena grows in multiples of it


class Store(Cache):
    """Keys and values of many rows. The tokens beyond `capacity` take a pass's filler, which nobody reads."""

    def __init__(self, filler: int = 0) -> None:
        super().__init__(layers=[])
        self.keys: list[Tensor] = []  # by layer, (capacity + filler, heads, size)
        self.values: list[Tensor] = []
        self.capacity, self.filler = 0, filler
        self.version = 0  # counts reallocations
        self.places: dict[int, range] = {}  # by the row's handle
        self.indices: Tensor | None = None  # where the keys of this pass's tokens belong

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

    def aim(self, indices: Tensor) -> None:
        """Say where the keys and values of the next pass belong."""
        self.indices = indices

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the keys and values of this pass; returns those of all rows, as attention reads them."""
        assert self.indices is not None
        stored = []
        for part, new in ((self.keys, key_states), (self.values, value_states)):
            if layer_idx == len(part):
                _, heads, _, size = new.shape
                part.append(new.new_zeros(self.capacity + self.filler, heads, size))
            part[layer_idx].index_copy_(0, self.indices, new[0].transpose(0, 1))
            stored.append(part[layer_idx].transpose(0, 1)[None])
        return stored[0], stored[1]


def _head(place: range, size: int) -> Tensor:
    """The first indices of a place."""
    return torch.arange(place.start, place.start + size)
