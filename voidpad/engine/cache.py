"""Key-value caches for block decoding. Approximate: with full attention every key depends on the block.

At the first pass of a block the whole row is computed and its keys and values are kept. The block's further
passes compute only the block (dual cache) or the block and everything right of it (prefix cache) and read the
rest from the cache. Rows at either stage are packed into one pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from voidpad.decode.canvas import Canvas, first
from voidpad.decode.denoise import HFDenoiser
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import Packing, logits, next_power, rounded

STEP = 128  # tokens: the width of a row's room grows in such steps


class Store(Cache):
    """Keys and values of many rows: row `slot` has the places slot * width onwards, the last slot takes filler."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[Tensor] = []  # by layer, (places, heads, size)
        self.values: list[Tensor] = []
        self.slots, self.width = 0, STEP
        self.version = 0  # counts reallocations
        self.places: Tensor | None = None  # where the tokens of this pass belong

    def reserve(self, slots: int, width: int) -> bool:
        """Make room; what is stored stays. True if the tensors moved."""
        slots, width = next_power(slots), -(-width // STEP) * STEP  # in large steps: growing copies all
        slots, width = max(self.slots, slots), max(self.width, width)
        if (slots, width) == (self.slots, self.width):
            return False
        before = (self.slots + 1, self.width)
        self.slots, self.width = slots, width
        self.version += 1
        for part in (self.keys, self.values):
            for layer, old in enumerate(part):  # one at a time: there may not be room for all of them twice
                part[layer] = widened(old.unflatten(0, before), slots + 1, width)
        return True

    def aim(self, places: Tensor) -> None:
        self.places = places

    @torch.compiler.disable
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Put this pass's keys and values in their places; those of all rows."""
        assert self.places is not None
        found = []
        for part, new in ((self.keys, key_states), (self.values, value_states)):
            if layer_idx == len(part):
                _, heads, _, size = new.shape
                part.append(new.new_zeros((self.slots + 1) * self.width, heads, size))
            part[layer_idx].index_copy_(0, self.places, new[0].transpose(0, 1))
            found.append(part[layer_idx].transpose(0, 1)[None])
        return found[0], found[1]


def widened(old: Tensor, slots: int, width: int) -> Tensor:
    """(slots, width, heads, size) with more room, as (places, heads, size)."""
    new = old.new_zeros(slots, width, *old.shape[2:])
    new[: old.shape[0] - 1, : old.shape[1]] = old[:-1]
    return new.flatten(0, 1)


@dataclass
class Held:
    """Where a row's keys are kept, and for which prompt, block and length they were computed."""

    slot: int
    prompt: Tensor
    stop: int
    start: int = -1  # of the block; none until the pass that computes them is over
    used: int = 0  # passes since it was computed whole, that one included
    masks: int = 0  # left in the row at its last pass


@dataclass(frozen=True)
class CacheLayout:
    """Which tokens of which rows make up a pass and where their keys are. Inside a block it stays the same."""

    signature: Any
    row: Tensor  # (T,) the packed tokens, without the filler
    column: Tensor
    spare: int
    positions: Tensor
    queries: Tensor
    keys: Tensor
    starts: Tensor  # (B,) what to add to a column to find its state
    longest: tuple[int, int]
    stored: Tensor  # the places of this pass's keys


@dataclass
class CachedDenoiser:
    """A denoiser around a Hugging Face one that recomputes only part of a row inside a block."""

    inner: HFDenoiser
    block: int
    keep_suffix: bool = True  # dual cache; without it only the prefix is kept
    every: int | None = None  # passes after which a row is computed whole again inside its block
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)
    store: Store = field(default_factory=Store)
    held: dict[int, Held] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    layout: CacheLayout | None = None

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        start = first(where, otherwise=canvas.prompt) - canvas.prompt
        start = canvas.prompt + torch.div(start, self.block, rounding_mode="floor") * self.block
        last = where.shape[1] - 1 - where.flip(1).int().argmax(1)
        inside = last < start + self.block  # probes and observers look beyond: such a pass reuses nothing
        warm = torch.tensor(self._admit(canvas, start, inside))
        width = max(canvas.ids.shape[1], self.bucket)
        if self.store.reserve(len(self.held) + len(self.free), width):
            self.graphs.forget()
        begin = torch.where(warm, start - self.inner.shift, 0)
        ends = torch.minimum(start + self.block, canvas.stop) if self.keep_suffix else canvas.stop
        packing = self._pack(canvas, where, begin, torch.where(warm, ends, canvas.stop))
        found = logits(self.inner, packing, self.graphs, cache=self.store, version=self.store.version)
        for key, block in zip(canvas.handle.tolist(), start.tolist(), strict=True):
            self.held[key].start = block  # only now: after a pass that failed nothing may be reused
        return found

    def forget(self, key: int) -> None:
        """A row that ended gives its place back."""
        if key in self.held:
            self.free.append(self.held.pop(key).slot)

    def clear(self) -> None:
        """Forget every row and give the memory back."""
        self.graphs.forget()
        self.store, self.held, self.free, self.layout = Store(), {}, [], None

    def _admit(self, canvas: Canvas, start: Tensor, inside: Tensor) -> list[bool]:
        """Rows whose keys were kept for this block; the others get a place, they are computed whole."""
        found = []
        parts = (canvas.handle, canvas.prompt, start, canvas.stop, canvas.masked.sum(1), inside)
        for row, (key, prompt, *now, reuse) in enumerate(zip(*(p.tolist() for p in parts), strict=True)):
            tokens, held = canvas.ids[row, :prompt], self.held.get(key)
            warm = held is not None and reuse and self._fresh(held, tokens, *now)
            if not warm:
                slot = held.slot if held else self.free.pop() if self.free else len(self.held)
                self.held[key] = held = Held(slot, tokens.clone(), now[1])
            assert held is not None
            held.used, held.masks = held.used + 1, now[2]
            found.append(warm)
        return found

    def _fresh(self, held: Held, prompt: Tensor, start: int, stop: int, masks: int) -> bool:
        if (held.start, held.stop) != (start, stop) or held.used == self.every:
            return False
        # A key may come back with another prompt, or with the same one from its beginning.
        return masks <= held.masks and torch.equal(held.prompt, prompt)

    def _pack(self, canvas: Canvas, where: Tensor, begin: Tensor, end: Tensor) -> Packing:
        """The tokens begin..end of each row, in the order of their slots, and the keys of whole rows."""
        slots = [self.held[key].slot for key in canvas.handle.tolist()]
        signature = (slots, begin.tolist(), end.tolist(), canvas.stop.tolist(), self.store.version)
        if self.layout is None or self.layout.signature != signature:
            self.layout = self._lay_out(canvas, torch.tensor(slots), (begin, end), signature)
        layout = self.layout
        row, column = where.nonzero(as_tuple=True)
        return Packing(
            ids=pad(canvas.ids[layout.row, layout.column], (0, layout.spare), value=canvas.roles.eos),
            positions=layout.positions,
            queries=layout.queries,
            keys=layout.keys,
            places=layout.starts[row] + column,
            longest=layout.longest,
            extra=(layout.stored,),
        )

    def _lay_out(
        self, canvas: Canvas, slot: Tensor, span: tuple[Tensor, Tensor], signature: Any
    ) -> CacheLayout:
        (begin, end), slots, width = span, self.store.slots, self.store.width
        order = slot.argsort()
        taken = ((canvas.offset >= begin[:, None]) & (canvas.offset < end[:, None]))[order]
        row, column = taken.nonzero(as_tuple=True)
        row = order[row]
        spare = -len(row) % self.bucket
        filler = torch.arange(spare)
        blank = torch.zeros(slots, dtype=torch.long)
        queries, keys = blank.scatter(0, slot, end - begin), blank.scatter(0, slot, canvas.stop)
        return CacheLayout(
            signature=signature,
            row=row,
            column=column,
            spare=spare,
            positions=torch.cat([column, filler]),
            queries=bounds(queries, blank, spare),  # between two rows' keys is a gap that no token looks at
            keys=bounds(keys, width - keys, width),
            starts=(queries.cumsum(0) - queries)[slot] - begin - self.inner.shift,
            longest=(rounded(max(int((end - begin).max()), spare)), width),
            stored=torch.cat([slot[row] * width + column, slots * width + filler]),
        )


def bounds(rows: Tensor, gaps: Tensor, filler: int) -> Tensor:
    lengths = torch.stack([rows, gaps], 1).flatten()
    return torch.cat([lengths.new_zeros(1), lengths, lengths.new_tensor([filler])]).cumsum(0)
