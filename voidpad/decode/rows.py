"""The state of decoding: a canvas and, for each row, its position in it and its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from voidpad.constrain.row import GapConstraints, RowConstraint
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
    constraints: tuple[RowConstraint | GapConstraints | None, ...] = ()  # of each row; () if no row has one

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
        constraints: Sequence[RowConstraint | GapConstraints | None] = (),
    ) -> Rows:
        """Rows before their first pass, at the first block of a canvas of masks; it starts at `open`."""
        zero = torch.zeros(len(canvas), dtype=torch.long)
        no = torch.zeros(len(canvas), dtype=torch.bool)
        seed = torch.tensor(seeds, dtype=torch.long)
        rows = cls(
            canvas,
            seed,
            limit,
            open,
            zero,
            zero,
            zero,
            no | probing,
            no,
            zero,
            zero,
            zero,
            tuple(constraints),
        )
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

    def window(self, block: int) -> Tensor:
        """Masked slots of each row's active block (B, L)."""
        if block not in self._windows:
            offset, start = self.canvas.offset, self.open[:, None]
            self._windows[block] = self.canvas.masked & (offset >= start) & (offset < start + block)
        return self._windows[block]

    def progress(self, frontier: Tensor, steps: int, block: int) -> BlockProgress:
        """How far each row is through its block, for the commit rule."""
        return BlockProgress(frontier.sum(1), self.entry, self.spent, steps, block, self.open)

    def advance(self, block: int) -> Rows:
        """The same rows with the active block moved past full blocks; to the canvas end where no mask is left."""
        canvas = self.canvas
        ahead = first(canvas.masked & (canvas.offset >= self.open[:, None]), otherwise=canvas.stop)
        skipped = torch.div(ahead - self.open, block, rounding_mode="floor") * block
        opened = torch.where(ahead < canvas.stop, self.open + skipped, canvas.stop)
        fresh = opened != self.open
        moved = replace(self, open=opened)
        entry = torch.where(fresh, moved.window(block).sum(1), self.entry)
        return replace(moved, entry=entry, spent=torch.where(fresh, 0, self.spent))

    def leave_spent(self, block: int, steps: int) -> Rows:
        """The same rows, each past its active block if `steps` passes were spent there, whatever is still masked."""
        spent = self.spent >= steps
        opened = torch.where(spent, torch.minimum(self.open + block, self.canvas.stop), self.open)
        moved = replace(self, open=opened, spent=torch.where(spent, 0, self.spent))
        entry = torch.where(spent, moved.window(block).sum(1), self.entry)
        return replace(moved, entry=entry, still=torch.where(spent, 0, self.still))

    def select(self, rows: Tensor) -> Rows:
        """Only these rows (bool mask or indices)."""
        parts = {name: getattr(self, name)[rows] for name in COUNTERS}
        numbers = torch.arange(len(self))[rows].tolist()
        constraints = tuple(self.constraints[n] for n in numbers) if self.constraints else ()
        return Rows(self.canvas.select(rows), **parts, constraints=constraints)

    @property
    def shortest(self) -> Tensor:
        """The fewest slots that a row's constraint leaves room for (B,); 0 for rows without one."""
        least = [one.shortest if isinstance(one, RowConstraint) else 0 for one in self.constraints] or [
            0
        ] * len(self)
        return torch.tensor(least, dtype=torch.long)


COUNTERS = tuple(field.name for field in fields(Rows) if field.name not in ("canvas", "constraints"))


def join_rows(groups: Sequence[Rows]) -> Rows:
    """All rows of several groups as one group."""
    if len(groups) == 1:
        return groups[0]
    parts = {name: torch.cat([getattr(group, name) for group in groups]) for name in COUNTERS}
    constraints: tuple[RowConstraint | GapConstraints | None, ...] = ()
    if any(group.constraints for group in groups):
        constraints = tuple(one for group in groups for one in group.constraints or (None,) * len(group))
    return Rows(join([group.canvas for group in groups]), **parts, constraints=constraints)
