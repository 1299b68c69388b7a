"""What is computed at once: the rows of an update, divided into forward and backward passes of bounded size.

A mini-batch says what is learnt: how far its rows are padded and by what its loss is divided. A pass is only work, so
it may hold several mini-batches or a part of one. The loss is a weighted sum over slots and every slot carries its
weight, so the gradients of an update do not depend on its passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from voidpad.training.batches import BatchShare, TrainingRows
from voidpad.training.losses import Normaliser, PackedPass, Slots, loss_slots
from voidpad.training.noising import Noising
from voidpad.training.padding import Batch

# Where padding costs more than another pass, rows are at least so much of the longest row of theirs.
EVEN = 0.75


@dataclass
class PassLimit:
    """How large a pass may be and how its rows lie. The trainer lowers `tokens` when a pass does not fit."""

    tokens: int = 4096  # a longer row is a pass of its own
    packed: bool = False  # rows end to end in one sequence; otherwise padded to the longest row of the pass
    multiple: int = 1  # the sequence, or each padded row, is brought to a multiple of this: few shapes
    small: int = 0  # tokens of a padded pass up to which a further pass would cost more than uneven rows

    def size(self, lengths: Sequence[int]) -> int:
        """Tokens that a pass over rows of these lengths computes."""
        if self.packed:
            return self.rounded(sum(lengths))
        return len(lengths) * self.rounded(max(lengths))

    def rounded(self, tokens: int) -> int:
        return -(-tokens // self.multiple) * self.multiple


def plan(lengths: Sequence[int], limit: PassLimit, *, least: int = 1) -> list[list[int]]:
    """Rows, by number, divided into passes of about equal size, long rows first, and no fewer passes than `least`."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    found = _filled(order, lengths, limit, limit.tokens)
    low, high = 0, limit.tokens if len(found) > 1 else 0
    while high - low > 1:  # the smallest bound with as few passes makes them equal
        middle = (low + high) // 2
        tried = _filled(order, lengths, limit, middle)
        if len(tried) == len(found):
            found, high = tried, middle
        else:
            low = middle
    while len(found) < least:
        largest = max(range(len(found)), key=lambda number: len(found[number]))
        rows = found[largest]
        found[largest : largest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return found


def _filled(order: Sequence[int], lengths: Sequence[int], limit: PassLimit, tokens: int) -> list[list[int]]:
    """Passes filled one after the other with rows, which come in order of falling length."""
    passes: list[list[int]] = []
    total = 0  # tokens of the rows in the last pass
    for row in order:
        if passes:
            first, rows = lengths[passes[-1][0]], len(passes[-1]) + 1
            padded = rows * limit.rounded(first)
            size = limit.rounded(total + lengths[row]) if limit.packed else padded
            if size <= tokens and (limit.packed or size <= limit.small or lengths[row] >= EVEN * first):
                passes[-1].append(row)
                total += lengths[row]
                continue
        passes.append([row])
        total = lengths[row]
    return passes


@dataclass(frozen=True)
class Objective:
    """What the loss is: the mask token, how the sum is normalised, the family's shift, whether EOS is forced."""

    mask: int
    normaliser: Normaliser
    shift: int = 0
    forced: bool = False


class UpdatePasses(Dataset[Any]):
    """Item u is update number u: the passes that compute this process's rows of it. Trainer sees one long epoch.

    A pass is the keyword arguments of SlotLoss, with the `weight` and `kind` of each loss slot and the number of
    `tokens` in its rows.
    """

    def __init__(
        self,
        rows: TrainingRows,
        noising: Noising,
        objective: Objective,
        *,
        share: BatchShare,
        limit: PassLimit,
    ) -> None:
        self.rows, self.noising, self.objective = rows, noising, objective
        self.share, self.limit = share, limit
        self.length = 1  # set once the number of updates is known
        self.updates_per_epoch = -(-rows.count // share.global_batch)
        self.side: torch.cuda.Stream | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, update: int) -> list[dict[str, Any]]:
        epoch, position = self._place(update)
        return self.passes(epoch, position, least=self._least(update) if self.share.even else 1)

    def planned(self, update: int, rank: int | None = None) -> list[list[int]]:
        """The lengths of the rows in each pass of an update, in this process or in the one of that rank."""
        epoch, position = self._place(update, rank)
        lengths = self.rows.lengths(epoch, position, self.share.micro_batch).end.tolist()
        return [[lengths[row] for row in rows] for rows in plan(lengths, self.limit)]

    def _place(self, update: int, rank: int | None = None) -> tuple[int, Tensor]:
        """The epoch of an update, and where in the epoch's order the rows of a process stand."""
        epoch, update = divmod(update, self.updates_per_epoch)
        return epoch, (update * self.share.global_batch + self.share.rows(rank)) % self.rows.count

    def _least(self, update: int) -> int:
        """The passes of the process that makes the most; each process finds this number by itself."""
        return max(len(self.planned(update, rank)) for rank in range(self.share.processes))

    def passes(self, epoch: int, position: Tensor, *, least: int = 1) -> list[dict[str, Any]]:
        """The passes over the rows at `position` (B,) of an epoch: mini-batches one after the other.

        Their losses add up to the mean over these mini-batches, each counted by its rows. On a GPU they are built in a
        CUDA stream of its own. Counting the loss slots waits for the device: here for these rows alone and not for
        the step still running, so the device never goes idle between steps.
        """
        if self.rows.device.type != "cuda":
            return self._built(epoch, position, least)
        main = torch.cuda.current_stream()
        if self.side is None:
            torch.cuda.synchronize()  # the data's own upload
            self.side = torch.cuda.Stream(priority=-1)
        with torch.cuda.stream(self.side):
            passes = self._built(epoch, position, least)
        main.wait_stream(self.side)
        for inputs in passes:
            packed = inputs.get("packed")
            for value in (*inputs.values(), *((packed.positions, packed.bounds) if packed else ())):
                if isinstance(value, Tensor):
                    value.record_stream(main)
        return passes

    def _built(self, epoch: int, position: Tensor, least: int) -> list[dict[str, Any]]:
        size, goal = self.share.micro_batch, self.objective
        lengths = self.rows.lengths(epoch, position, size)
        planned = plan(lengths.end.tolist(), self.limit, least=least)
        order = torch.tensor([row for rows in planned for row in rows])
        batch, at = self.rows(epoch, position[order], lengths.width[order])
        noised = self.noising(batch, goal.mask, forced=goal.forced, at=at)
        mini_batch = (order // size).to(batch.ids.device, non_blocking=True)
        slots = loss_slots(batch, noised, goal.normaliser, shift=goal.shift, mini_batch=mini_batch)
        bounds = list(accumulate(map(len, planned), initial=0))
        columns = batch.ids.shape[1]
        edges = torch.tensor([row * columns for row in bounds]).to(slots.where.device, non_blocking=True)
        cuts = torch.searchsorted(slots.where, edges).tolist()
        ends = lengths.end[order]
        lay = self._packed if self.limit.packed else self._padded
        passes = []
        for (first, last), (a, b) in zip(pairwise(bounds), pairwise(cuts), strict=True):
            part = Slots(*(value[a:b] for value in vars(slots).values()))
            row, column = part.where // columns - first, part.where % columns
            end = ends[first:last]
            inputs = lay(noised.ids[first:last], batch, end, row, column, first)
            inputs |= {"label": part.label, "weight": part.weight, "kind": part.kind}
            passes.append(inputs | {"tokens": int(end.sum())})
        return passes

    def _padded(
        self, ids: Tensor, batch: Batch, end: Tensor, row: Tensor, column: Tensor, first: int
    ) -> dict[str, Any]:
        """Rows (R, S) padded to the longest of them. Where nothing is hidden no mask is given: the plain attention
        kernel is the fast one."""
        columns = self.limit.rounded(int(end.max()))
        inputs = {"ids": _columns(ids, columns), "where": row * columns + column}
        if bool((end == columns).all()):
            return inputs
        assert batch.inside is not None
        return inputs | {"inside": _columns(batch.inside[first : first + len(ids)], columns)}

    def _packed(
        self, ids: Tensor, batch: Batch, end: Tensor, row: Tensor, column: Tensor, first: int
    ) -> dict[str, Any]:
        """Rows (R, S) end to end as one sequence (1, T). The filler after them is a row of its own; rows of length zero
        bring their number to a power of two, again for few shapes."""
        device, tokens = ids.device, int(end.sum())
        spare = self.limit.rounded(tokens) - tokens
        start = end.cumsum(0) - end
        number = torch.repeat_interleave(torch.arange(len(end)), end)
        positions = torch.arange(tokens) - start[number]
        source = (number * ids.shape[1] + positions).to(device, non_blocking=True)
        count = len(end) + bool(spare)
        empty = (1 << (count - 1).bit_length()) - count if self.limit.multiple > 1 else 0
        rows = torch.cat([end, torch.tensor([spare] * bool(spare) + [0] * empty, dtype=torch.long)])
        packed = PackedPass(
            F.pad(positions, (0, spare)).to(device, non_blocking=True),
            F.pad(rows.cumsum(0), (1, 0)).int().to(device, non_blocking=True),
            max(self.rows.longest, spare),
        )
        chosen = F.pad(ids.flatten()[source], (0, spare))
        where = start.to(device, non_blocking=True)[row] + column
        return {"ids": chosen[None], "where": where, "packed": packed}


def _columns(rows: Tensor, columns: int) -> Tensor:
    """(R, S) cut or filled with zeros to so many columns."""
    return F.pad(rows, (0, columns - rows.shape[1])) if columns > rows.shape[1] else rows[:, :columns]
