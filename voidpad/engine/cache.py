"""Key-value caches for block decoding. Approximate: with full attention every key depends on the whole row.

The first pass of a block computes the whole row and stores its keys and values. Further passes of the block compute
what the policy (`cache_policy.py`) says and read the rest from the store. Rows at either stage share one packed pass.
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
from voidpad.engine.cache_policy import CachePolicy
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import Packing, logits, next_power, rounded

STEP = 128  # tokens: the the width of a slot grows in such steps


class Store(Cache):
    """Keys and values of many rows. The row in slot s has the indices s * width onwards; the last slot takes filler."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[Tensor] = []  # by layer, (slots * width, heads, size)
        self.values: list[Tensor] = []
        self.slots, self.width = 0, STEP
        self.version = 0  # counts reallocations
        self.indices: Tensor | None = None  # where the keys of this pass's tokens belong

    def reserve(self, slots: int, width: int) -> bool:
        """Make room for so many rows of such a width, keeping what is stored. True if the tensors moved."""
        slots, width = next_power(slots), -(-width // STEP) * STEP  # in large steps: growing copies all
        slots, width = max(self.slots, slots), max(self.width, width)
        if (slots, width) == (self.slots, self.width):
            return False
        before = (self.slots + 1, self.width)
        self.slots, self.width = slots, width
        self.version += 1
        for part in (self.keys, self.values):
            for layer, old in enumerate(part):  # one at a time: there may not be room for all of them twice
                part[layer] = _widened(old.unflatten(0, before), slots + 1, width)
        return True

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
                part.append(new.new_zeros((self.slots + 1) * self.width, heads, size))
            part[layer_idx].index_copy_(0, self.indices, new[0].transpose(0, 1))
            stored.append(part[layer_idx].transpose(0, 1)[None])
        return stored[0], stored[1]


def _widened(old: Tensor, slots: int, width: int) -> Tensor:
    """(slots, width, heads, size) with more slots or width, as (slots * width, heads, size)."""
    new = old.new_zeros(slots, width, *old.shape[2:])
    new[: old.shape[0] - 1, : old.shape[1]] = old[:-1]
    return new.flatten(0, 1)


@dataclass
class CacheEntry:
    """Where the keys and values of a row are stored, and for which prompt, block and length they were computed."""

    slot: int
    prompt: Tensor
    stop: int
    start: int = -1  # of the block; -1 until the pass that computes the keys has succeeded
    passes: int = 0  # since the row was computed whole, that pass included
    masks: int = 0  # left in the row at its last pass


@dataclass(frozen=True)
class CacheLayout:
    """Which tokens of which rows make up a pass and where their keys are stored. It holds for a whole block."""

    signature: Any
    row: Tensor  # (T,) the packed tokens, without the filler
    column: Tensor
    spare: int
    positions: Tensor
    queries: Tensor
    keys: Tensor
    starts: Tensor  # (B,) what to add to a column to get the index of its hidden state
    longest: tuple[int, int]
    stored: Tensor  # the store's indices for the keys of this pass


@dataclass
class CachedDenoiser:
    """A denoiser around a Hugging Face one that recomputes only part of a row inside a block."""

    inner: HFDenoiser
    block: int
    policy: CachePolicy = CachePolicy()
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)
    store: Store = field(default_factory=Store)
    entries: dict[int, CacheEntry] = field(default_factory=dict)  # by the row's handle
    free: list[int] = field(default_factory=list)
    layout: CacheLayout | None = None

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        start = first(where, otherwise=canvas.prompt) - canvas.prompt
        start = canvas.prompt + torch.div(start, self.block, rounding_mode="floor") * self.block
        last = where.shape[1] - 1 - where.flip(1).int().argmax(1)
        inside = (
            last < start + self.block
        )  # a probe reads slots beyond the block: its pass computes the whole row
        reuse = torch.tensor(self._reusable(canvas, start, inside))
        width = max(canvas.ids.shape[1], self.bucket)
        if self.store.reserve(len(self.entries) + len(self.free), width):
            self.graphs.forget()
        begin, end = self.policy.recomputed(canvas, start, self.block)
        begin, end = torch.where(reuse, begin - self.inner.shift, 0), torch.where(reuse, end, canvas.stop)
        packing = self._pack(canvas, where, begin, end)
        result = logits(self.inner, packing, self.graphs, cache=self.store, version=self.store.version)
        for handle, block in zip(canvas.handle.tolist(), start.tolist(), strict=True):
            self.entries[handle].start = block  # only now: after a pass that failed nothing may be reused
        return result

    def forget(self, handle: int) -> None:
        """Free the slot of a row that ended."""
        if handle in self.entries:
            self.free.append(self.entries.pop(handle).slot)

    def clear(self) -> None:
        """Forget every row and free the memory."""
        self.graphs.forget()
        self.store, self.entries, self.free, self.layout = Store(), {}, [], None

    def _reusable(self, canvas: Canvas, start: Tensor, inside: Tensor) -> list[bool]:
        """For each row, whether its stored keys serve this pass. The others get a slot and are computed whole."""
        reusable = []
        columns = (canvas.handle, canvas.prompt, start, canvas.stop, canvas.masked.sum(1), inside)
        for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            handle, prompt, block, stop, masks, in_block = values
            tokens, entry = canvas.ids[row, :prompt], self.entries.get(handle)
            reuse = (
                entry is not None
                and in_block
                and (entry.start, entry.stop) == (block, stop)
                and not self.policy.is_stale(entry.passes)
                # Without an engine a handle may come back with another prompt, or with the same one from its start.
                and masks <= entry.masks
                and torch.equal(entry.prompt, tokens)
            )
            if not reuse:
                slot = entry.slot if entry else self.free.pop() if self.free else len(self.entries)
                self.entries[handle] = entry = CacheEntry(slot, tokens.clone(), stop)
            assert entry is not None
            entry.passes, entry.masks = entry.passes + 1, masks
            reusable.append(reuse)
        return reusable

    def _pack(self, canvas: Canvas, where: Tensor, begin: Tensor, end: Tensor) -> Packing:
        """The tokens begin..end of each row, in the order of their slots, and the keys of whole rows."""
        slots = [self.entries[handle].slot for handle in canvas.handle.tolist()]
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
            outputs=layout.starts[row] + column,
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
            # Between the keys of two rows is a gap that no query sees.
            queries=_bounds(queries, blank, spare),
            keys=_bounds(keys, width - keys, width),
            starts=(queries.cumsum(0) - queries)[slot] - begin - self.inner.shift,
            longest=(rounded(max(int((end - begin).max()), spare)), width),
            stored=torch.cat([slot[row] * width + column, slots * width + filler]),
        )


def _bounds(rows: Tensor, gaps: Tensor, filler: int) -> Tensor:
    """Cumulative lengths of the rows, each followed by its gap, and of the filler: what varlen attention reads."""
    lengths = torch.stack([rows, gaps], 1).flatten()
    return torch.cat([lengths.new_zeros(1), lengths, lengths.new_tensor([filler])]).cumsum(0)
