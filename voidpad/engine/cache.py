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

from voidpad.decode.canvas import Canvas, first
from voidpad.decode.causal import horizon
from voidpad.decode.denoise import HFDenoiser
from voidpad.engine.cache_policy import CachedRow, CachePass, CachePolicy, Caching
from voidpad.engine.cache_store import Store
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import Packing, logits, next_power, rounded


@dataclass(frozen=True)
class _CacheLayout:
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
    store: Store = field(init=False)
    entries: dict[int, CachedRow] = field(default_factory=dict)  # by handle, rows as of their last good pass
    layout: _CacheLayout | None = None
    widest: tuple[int, int] = (1, 1)  # most rows and most keys of a row so far; it only grows: graphs fit on

    def __post_init__(self) -> None:
        self.store = Store(filler=self.bucket)

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        start, inside = self._open_block(canvas, where)
        rows = self._rows(canvas, start, inside)
        now = self._pass(canvas, start, inside, rows)
        self._reserve(now)
        visible = self.policy.visible(now)
        packing = self._pack(canvas, where, self._taken(now, visible), visible)
        result = logits(self.inner, packing, self.graphs, cache=self.store, version=self.store.version)
        for handle, row in zip(canvas.handle.tolist(), rows, strict=True):
            self.entries[handle] = row  # only now: after a pass that failed nothing new may be reused
        return result

    def forget(self, handle: int) -> None:
        """Free the place of a row that ended."""
        self.entries.pop(handle, None)
        self.store.release(handle)

    def clear(self) -> None:
        """Forget every row and free the memory."""
        self.graphs.forget()
        self.store, self.entries = Store(filler=self.bucket), {}
        self.layout, self.widest = None, (1, 1)

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
        """The rows as they are now, each with the age of its stored keys, which are forgotten if they do not serve."""
        rows = []
        columns = (canvas.handle, canvas.prompt, start, canvas.stop, canvas.masked.sum(1), inside)
        for number, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            handle, prompt, block, stop, masks, in_block = values
            stored, ids = self.entries.get(handle), canvas.ids[number, :stop].clone()
            row = CachedRow(ids, prompt, block, masks, age=stored.age + 1 if stored else 0)
            if stored and not (in_block and self.policy.serves(stored, row)):
                del self.entries[handle]
                row = replace(row, age=0)
            rows.append(row)
        return rows

    def _pass(self, canvas: Canvas, start: Tensor, inside: Tensor, rows: Sequence[CachedRow]) -> CachePass:
        stored = [
            self.entries.get(handle, row) for handle, row in zip(canvas.handle.tolist(), rows, strict=True)
        ]
        return CachePass(
            canvas=canvas,
            start=start,
            end=torch.where(inside, torch.minimum(start + self.block, canvas.stop), canvas.stop),
            age=torch.tensor([row.age for row in rows]),
            before=torch.tensor([row.start for row in stored]),
            changed=torch.tensor([_changed(old.ids, row.ids) for old, row in zip(stored, rows, strict=True)]),
        )

    def _reserve(self, now: CachePass) -> None:
        """Make room for the keys of these rows. The keys of a row that is computed whole need not be moved."""
        sizes = dict(zip(now.canvas.handle.tolist(), now.canvas.stop.tolist(), strict=True))
        for handle, size in sizes.items():
            if handle not in self.entries and len(self.store.places.get(handle, ())) != size:
                self.store.release(handle)
        try:
            if self.store.reserve(sizes):
                self.graphs.forget()
        except Exception:
            self.clear()  # out of memory, with half of the layers moved
            raise

    def _taken(self, now: CachePass, visible: Tensor) -> Tensor:
        """The tokens that this pass computes, (B, L)."""
        part = self.policy.recomputed(now)
        # The logits of a slot come from the position before it, which in causal blocks is in the open block.
        if self.inner.shift and not self.inner.causal_block:
            part = part | pad(part[:, 1:], (0, 1))
        taken = torch.where((now.age > 0)[:, None], part, now.canvas.inside)
        return taken & (now.canvas.offset < visible[:, None])

    def _pack(self, canvas: Canvas, where: Tensor, taken: Tensor, visible: Tensor) -> Packing:
        """The tokens of this pass, in the order of their rows' places, and the keys that they see."""
        begin = [self.store.places[handle].start for handle in canvas.handle.tolist()]
        signature = (begin, visible.tolist(), self.store.capacity)
        layout = self.layout
        if layout is None or layout.signature != signature or not torch.equal(layout.taken, taken):
            layout = self.layout = self._lay_out(taken, visible, torch.tensor(begin), signature)
        row, column = where.nonzero(as_tuple=True)
        assert layout.taken[
            row, column - self.inner.shift
        ].all()  # the policy left out a slot that is asked for
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

    def _lay_out(self, taken: Tensor, visible: Tensor, begin: Tensor, signature: Any) -> _CacheLayout:
        capacity, count, order = self.store.capacity, taken.sum(1), begin.argsort()
        row, column = taken[order].nonzero(as_tuple=True)
        row = order[row]
        index = torch.zeros(taken.shape, dtype=torch.long)
        index[row, column] = torch.arange(len(row))
        spare = -len(row) % self.bucket
        filler = torch.arange(spare)
        fitting = next_power(len(begin)), rounded(max(int(visible.max()), spare))
        self.widest = rows, keys = max(self.widest[0], fitting[0]), max(self.widest[1], fitting[1])
        ends = pad((begin + visible)[order], (1, 0))
        gaps = torch.cat([begin[order], torch.tensor([capacity])]) - ends  # between keys that are visible
        positions, horizons = torch.cat([column, filler]), filler[:0]
        if self.inner.causal_block and (horizon(column, self.inner.causal_block) < visible[row]).any():
            horizons = horizon(positions, self.inner.causal_block)
        return _CacheLayout(
            taken=taken,
            signature=signature,
            row=row,
            column=column,
            spare=spare,
            positions=positions,
            horizons=horizons,
            queries=_bounds(count[order], torch.zeros_like(gaps), spare, rows),
            keys=_bounds(visible[order], gaps, spare, rows),
            index=index,
            longest=(rounded(max(int(count.max()), spare)), keys),
            stored=torch.cat([begin[row] + column, capacity + filler]),
        )


def _changed(before: Tensor, now: Tensor) -> int:
    """The first place at which two rows differ; the shorter one's length if there is none."""
    size = min(len(before), len(now))
    places = (before[:size] != now[:size]).nonzero()
    return int(places[0]) if len(places) else size


def _bounds(rows: Tensor, gaps: Tensor, filler: int, count: int) -> Tensor:
    """Cumulative lengths of the rows, each after its gap, of the last gap and the filler: what varlen attention reads.

    Empty rows bring their number to `count`.
    """
    lengths = torch.stack([gaps[:-1], rows], 1).flatten()
    lengths = pad(lengths, (1, 2 * (count - len(rows))))
    return torch.cat([lengths, gaps[-1:], lengths.new_tensor([filler])]).cumsum(0)
