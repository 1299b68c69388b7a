"""The state of decoding: a canvas and, for each row, its position in it and its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas, first, join
from voidpad.decode.commit import BlockProgress


@dataclass(frozen=True)
class Rows:
    """Rows between two passes: their canvas, limits, active block and counters, all that decoding needs to go on.

    Rows may be selected and joined between passes.
    """

    canvas: Canvas
    seed: Tensor  # (B,)
    limit: Tensor  # (B,) the longest canvas a length rule may give the row
    open: Tensor  # (B,) absolute position at which the active block starts
    entry: Tensor  # (B,) masks of the active block when it was opened
    spent: Tensor  # (B,) passes used in the active block
    still: Tensor  # (B,) how many decoding passes, up to now, have changed nothing
    probing: Tensor  # (B,) bool, the canvas length is still being chosen
    settled: Tensor  # (B,) bool, the length rule may no longer change the canvas length
    decoded: Tensor  # (B,) decoding passes
    probed: Tensor  # (B,) probes
    shared: Tensor  # (B,) passes that were a probe and a decoding pass at once
    # (B,) slots of the active block, 0 until its first pass; None without a block rule
    size: Tensor | None = None

    @classmethod
    def begin(
        cls,
        canvas: Canvas,
        block: int,
        *,
        open: Tensor,
        seeds: Sequence[int],
        limit: Tensor,
        probing: bool,
        sized: bool = False,
    ) -> Rows:
        """Rows before their first pass, at the first block of a canvas of masks; it starts at `open`.

        `sized`: a block rule says how long each block is.
        """
        zero = torch.zeros(len(canvas), dtype=torch.long)
        no = torch.zeros(len(canvas), dtype=torch.bool)
        seed = torch.tensor(seeds, dtype=torch.long)
        size = zero if sized else None
        rows = cls(canvas, seed, limit, open, zero, zero, zero, no | probing, no, zero, zero, zero, size)
        return replace(rows, entry=rows.window(block).sum(1))

    def __len__(self) -> int:
        return len(self.canvas)

    @property
    def committed_prefix(self) -> Tensor:
        """How many slots at the start of each canvas hold tokens (B,): the slots left of the first mask."""
        return first(self.canvas.masked, otherwise=self.canvas.stop) - self.canvas.prompt

    @cached_property
    def _windows(self) -> dict[int, Tensor]:
        """What `window` has computed, by block size."""
        return {}

    @property
    def enters(self) -> Tensor:
        """With a block rule, the rows (B,) that enter a block in the next pass: its size is not known yet."""
        assert self.size is not None
        return self.size == 0

    def span(self, block: int) -> Tensor:
        """The number of slots of each row's active block (B,), which may reach past the end of the canvas."""
        if self.size is None:
            return torch.full_like(self.open, block)
        return torch.where(self.enters, block, self.size)

    def window(self, block: int) -> Tensor:
        """Masked slots of each row's active block (B, L)."""
        if block not in self._windows:
            offset, start = self.canvas.offset, self.open[:, None]
            end = start + (block if self.size is None else self.span(block)[:, None])
            self._windows[block] = self.canvas.masked & (offset >= start) & (offset < end)
        return self._windows[block]

    def progress(self, frontier: Tensor, steps: int, block: int) -> BlockProgress:
        """How far each row is through its block, for the commit rule."""
        return BlockProgress(frontier.sum(1), self.entry, self.spent, steps, self.open, block)

    def advance(self, block: int) -> Rows:
        """The same rows with the active block moved past full blocks; to the canvas end where no mask is left."""
        canvas = self.canvas
        ahead = first(canvas.masked & (canvas.offset >= self.open[:, None]), otherwise=canvas.stop)
        done = ahead - self.open
        skipped = torch.div(done, block, rounding_mode="floor") * block
        if self.size is not None:
            skipped = torch.where(self.enters, skipped, torch.where(done < self.size, 0, done))
        opened = torch.where(ahead < canvas.stop, self.open + skipped, canvas.stop)
        fresh = opened != self.open
        moved = replace(self, open=opened, size=self._left(fresh), canvas=canvas.forget(fresh[:, None]))
        entry = torch.where(fresh, moved.window(block).sum(1), self.entry)
        return replace(moved, entry=entry, spent=torch.where(fresh, 0, self.spent))

    def leave_spent(self, block: int, steps: int) -> Rows:
        """The same rows, each past its active block if `steps` passes were spent there, whatever is still masked.

        A block whose size a block rule chose has as many passes as slots.
        """
        spent = self.spent >= self.span(steps)
        opened = torch.where(spent, torch.minimum(self.open + self.span(block), self.canvas.stop), self.open)
        moved = replace(self, open=opened, size=self._left(spent), spent=torch.where(spent, 0, self.spent))
        entry = torch.where(spent, moved.window(block).sum(1), self.entry)
        return replace(moved, entry=entry, still=torch.where(spent, 0, self.still))

    def _left(self, rows: Tensor) -> Tensor | None:
        """The sizes of blocks once these rows (B,) have left theirs."""
        return None if self.size is None else torch.where(rows, 0, self.size)

    def select(self, rows: Tensor) -> Rows:
        """Only these rows (bool mask or indices)."""
        parts = {name: part[rows] for name, part in self._parts()}
        return Rows(self.canvas.select(rows), **parts)

    def _parts(self) -> list[tuple[str, Tensor]]:
        """The tensors beside the canvas, by name."""
        return [(name, part) for name in COUNTERS if (part := getattr(self, name)) is not None]


COUNTERS = tuple(field.name for field in fields(Rows) if field.name != "canvas")


def join_rows(groups: Sequence[Rows]) -> Rows:
    """All rows of several groups as one group."""
    if len(groups) == 1:
        return groups[0]
    parts = {name: torch.cat([getattr(group, name) for group in groups]) for name, _ in groups[0]._parts()}
    return Rows(join([group.canvas for group in groups]), **parts)
