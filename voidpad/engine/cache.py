"""Key-value caches for block decoding.

A row's first pass computes it whole and stores its keys and values. Further passes compute what the policy
(`cache_policy.py`) says and read the rest from the store. Rows at either stage share one packed pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from voidpad.decode.canvas import Canvas, first
from voidpad.decode.causal import horizon
from voidpad.decode.denoise import HFDenoiser
from voidpad.engine.cache_policy import CachedRow, CachePass, CachePolicy, Caching
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import Packing, logits, next_power, rounded

STEP = 128  # tokens: the width of a slot grows in such steps


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

    @torch.compiler.disable
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
    """Where the keys and values of a row are stored, and the row as it was in the last pass that succeeded."""

    slot: int
    row: CachedRow | None = None


@dataclass(frozen=True)
class CacheLayout:
    """Which tokens of which rows make up a pass and where their keys are stored. Most hold for several passes."""

    taken: Tensor  # (B, L) the tokens of this pass
    signature: Any  # what else the layout depends on
    row: Tensor  # (T,) the packed tokens, without the filler
    column: Tensor
    spare: int
    positions: Tensor
    horizons: Tensor  # empty if every token sees all keys of its row, as inside one causal block
    queries: Tensor
    keys: Tensor
    index: Tensor  # (B, L) where each token of this pass is in the packed sequence
    longest: tuple[int, int]
    stored: Tensor  # the store's indices for the keys of this pass


@dataclass
class CachedDenoiser:
    """A denoiser around a Hugging Face one that recomputes only part of a row inside a block."""

    inner: HFDenoiser
    block: int
    policy: Caching = CachePolicy()
    bucket: int = 1
    graphs: Graphs = field(default_factory=Graphs)
    store: Store = field(default_factory=Store)
    entries: dict[int, CacheEntry] = field(default_factory=dict)  # by the row's handle
    free: list[int] = field(default_factory=list)
    layout: CacheLayout | None = None

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        start, inside = self._open_block(canvas, where)
        rows = self._rows(canvas, start, inside)
        now = self._pass(canvas, start, inside, rows)
        width = max(canvas.ids.shape[1], self.bucket)
        if self.store.reserve(len(self.entries) + len(self.free), width):
            self.graphs.forget()
        visible = self.policy.visible(now)
        packing = self._pack(canvas, where, self._taken(now, visible), visible)
        result = logits(self.inner, packing, self.graphs, cache=self.store, version=self.store.version)
        for handle, row in zip(canvas.handle.tolist(), rows, strict=True):
            self.entries[handle].row = row  # only now: after a pass that failed nothing new may be reused
        return result

    def forget(self, handle: int) -> None:
        """Free the slot of a row that ended."""
        if handle in self.entries:
            self.free.append(self.entries.pop(handle).slot)

    def clear(self) -> None:
        """Forget every row and free the memory."""
        self.graphs.forget()
        self.store, self.entries, self.free, self.layout = Store(), {}, [], None

    def _open_block(self, canvas: Canvas, where: Tensor) -> tuple[Tensor, Tensor]:
        """Where each row's open block starts, (B,), and whether all that is wanted of the row lies in it.

        A probe, or a caller who observes, also reads slots outside the block: such a pass computes the whole row.
        Causal blocks count from position 0, and theirs is the block of the positions that give the logits.
        """
        causal = bool(self.inner.causal_block)
        origin, back = (0, self.inner.shift) if causal else (canvas.prompt, 0)
        begin = first(where, otherwise=canvas.prompt) - back
        end = where.shape[1] - where.flip(1).int().argmax(1) - back
        start = origin + torch.div(begin - origin, self.block, rounding_mode="floor") * self.block
        return start, end <= start + self.block

    def _rows(self, canvas: Canvas, start: Tensor, inside: Tensor) -> list[CachedRow]:
        """The rows as they are now, each with the age of its stored keys. Rows without a slot get one."""
        rows = []
        columns = (canvas.handle, canvas.prompt, start, canvas.stop, canvas.masked.sum(1), inside)
        for number, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            handle, prompt, block, stop, masks, in_block = values
            entry = self.entries.get(handle)
            if entry is None:
                slot = self.free.pop() if self.free else len(self.entries)
                entry = self.entries[handle] = CacheEntry(slot)
            stored, ids = entry.row, canvas.ids[number, :stop].clone()
            row = CachedRow(ids, prompt, block, masks, 0 if stored is None else stored.age + 1)
            if stored is None or not (in_block and self.policy.serves(stored, row)):
                row, entry.row = replace(row, age=0), None  # what is stored is about to be overwritten
            rows.append(row)
        return rows

    def _pass(self, canvas: Canvas, start: Tensor, inside: Tensor, rows: Sequence[CachedRow]) -> CachePass:
        stored = [self.entries[handle].row for handle in canvas.handle.tolist()]
        return CachePass(
            canvas=canvas,
            start=start,
            end=torch.where(inside, torch.minimum(start + self.block, canvas.stop), canvas.stop),
            age=torch.tensor([row.age for row in rows]),
            before=torch.tensor([(old or row).start for old, row in zip(stored, rows, strict=True)]),
            changed=torch.tensor(
                [
                    0 if old is None else _changed(old.ids, row.ids)
                    for old, row in zip(stored, rows, strict=True)
                ]
            ),
        )

    def _taken(self, now: CachePass, visible: Tensor) -> Tensor:
        """The tokens that this pass computes, (B, L)."""
        part = self.policy.recomputed(now)
        # The logits of a slot come from the position before it, which in causal blocks is in the open block.
        if self.inner.shift and not self.inner.causal_block:
            part = part | pad(part[:, 1:], (0, 1))
        taken = torch.where((now.age > 0)[:, None], part, now.canvas.inside)
        return taken & (now.canvas.offset < visible[:, None])

    def _pack(self, canvas: Canvas, where: Tensor, taken: Tensor, visible: Tensor) -> Packing:
        """The tokens of this pass, in the order of their rows' slots, and the keys that they see."""
        slots = [self.entries[handle].slot for handle in canvas.handle.tolist()]
        signature = (slots, visible.tolist(), self.store.version)
        layout = self.layout
        if layout is None or layout.signature != signature or not torch.equal(layout.taken, taken):
            layout = self.layout = self._lay_out(taken, visible, torch.tensor(slots), signature)
        row, column = where.nonzero(as_tuple=True)
        return Packing(
            ids=pad(canvas.ids[layout.row, layout.column], (0, layout.spare), value=canvas.roles.eos),
            positions=layout.positions,
            queries=layout.queries,
            keys=layout.keys,
            outputs=layout.index[row, column - self.inner.shift],
            longest=layout.longest,
            extra=(layout.stored,),
            horizons=layout.horizons,
        )

    def _lay_out(self, taken: Tensor, visible: Tensor, slot: Tensor, signature: Any) -> CacheLayout:
        slots, width, count = self.store.slots, self.store.width, taken.sum(1)
        order = slot.argsort()
        row, column = taken[order].nonzero(as_tuple=True)
        row = order[row]
        index = torch.zeros(taken.shape, dtype=torch.long)
        index[row, column] = torch.arange(len(row))
        spare = -len(row) % self.bucket
        filler = torch.arange(spare)
        blank = torch.zeros(slots, dtype=torch.long)
        queries, keys = blank.scatter(0, slot, count), blank.scatter(0, slot, visible)
        positions, horizons = torch.cat([column, filler]), blank[:0]
        if self.inner.causal_block and (horizon(column, self.inner.causal_block) < visible[row]).any():
            horizons = horizon(positions, self.inner.causal_block)
        return CacheLayout(
            taken=taken,
            signature=signature,
            row=row,
            column=column,
            spare=spare,
            positions=positions,
            horizons=horizons,
            # Between the keys of two rows is a gap that no query sees.
            queries=_bounds(queries, blank, spare),
            keys=_bounds(keys, width - keys, width),
            index=index,
            longest=(rounded(max(int(count.max()), spare)), width),
            stored=torch.cat([slot[row] * width + column, slots * width + filler]),
        )


def _changed(before: Tensor, now: Tensor) -> int:
    """The first place at which two rows differ; the shorter one's length if there is none."""
    size = min(len(before), len(now))
    places = (before[:size] != now[:size]).nonzero()
    return int(places[0]) if len(places) else size


def _bounds(rows: Tensor, gaps: Tensor, filler: int) -> Tensor:
    """Cumulative lengths of the rows, each followed by its gap, and of the filler: what varlen attention reads."""
    lengths = torch.stack([rows, gaps], 1).flatten()
    return torch.cat([lengths.new_zeros(1), lengths, lengths.new_tensor([filler])]).cumsum(0)
