"""Rows as a pure function of their place in the run, built by tensor operations on the device.

Nothing here depends on the number of processes, on restarts or on what is computed in one pass: row `p` of epoch `e`
is the same row with the same noise however the run is divided, because every draw is a hash of (seed, epoch, example).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from voidpad.errors import DataError
from voidpad.roles import Roles
from voidpad.training.noising import WIDTH, At, Noising, draw
from voidpad.training.padding import (
    Batch,
    PaddingPolicy,
    Pairs,
    batch_width,
    lay_out,
)

# Bytes of tokens that may live on the GPU; larger data stays on the host, mapped from its file.
ON_DEVICE = 4 << 30


@dataclass(frozen=True)
class RowLengths:
    """How long some rows are, known on the host before the rows are made. Both (B,)."""

    width: Tensor  # how far a row with an EOS is padded
    end: Tensor  # its slots, padding tokens included; fewer than the width where an answer was cut


class TrainingRows(Protocol):
    """A source of clean rows. Positions (B,) are those of an epoch's order and live on the host."""

    count: int  # rows in an epoch
    longest: int  # slots of the longest row
    device: torch.device  # where its batches are

    def lengths(self, epoch: int, position: Tensor, mini_batch: int) -> RowLengths:
        """The lengths of rows that are mini-batches of so many rows, one after the other."""
        ...

    def __call__(self, epoch: int, position: Tensor, width: Tensor | None = None) -> tuple[Batch, At]:
        """The rows, each padded to its own width (B,); without widths, as one mini-batch."""
        ...


def shuffled(count: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


Draw = Callable[[], Tensor]  # a uniform number for each row
Width = Callable[[Pairs, Tensor, Draw], Tensor]  # (pairs on the host, rows (B,), draw) -> widths (B,)


@dataclass(frozen=True)
class BatchWidth:
    """The paper's S_B: the maximum over the rows of a mini-batch."""

    eos: bool = True  # with room for the EOS of the longest row

    def __call__(self, pairs: Pairs, rows: Tensor, draw: Draw) -> Tensor:
        return batch_width(pairs.size[rows], eos=self.eos)


@dataclass(frozen=True)
class VirtualWidth:
    """The width that a row would have had in a random mini-batch of `rows` examples.

    The row itself is one of them; the maximum of the other `rows - 1` has distribution F ** (rows - 1), sampled
    by inversion. So the padding a row shows does not depend on which rows it is really computed with.
    """

    rows: int = 6

    def __call__(self, pairs: Pairs, rows: Tensor, draw: Draw) -> Tensor:
        sizes, pool = pairs.size[rows], pairs.sorted_size
        if self.rows < 2:
            return sizes + 1
        rank = (draw() ** (1 / (self.rows - 1)) * len(pool)).long().clamp(max=len(pool) - 1)
        return torch.maximum(sizes, pool[rank]) + 1


@dataclass(frozen=True)
class WindowWidth:
    """A canvas of low..high slots after each prompt, drawn evenly and without regard to the answer's length.

    If every row held its whole answer, each row would end in EOS and padding, and a model would learn that any canvas,
    however short, is long enough. Here an answer longer than the canvas is cut, without an EOS.
    """

    low: int
    high: int

    def __call__(self, pairs: Pairs, rows: Tensor, draw: Draw) -> Tensor:
        return pairs.prompt[rows] + self.low + (draw() * (self.high - self.low + 1)).long()


@dataclass(frozen=True)
class FixedWidth:
    slots: int

    def __call__(self, pairs: Pairs, rows: Tensor, draw: Draw) -> Tensor:
        return torch.full_like(rows, self.slots)


@dataclass(frozen=True)
class BatchLayout:
    """How rows become tensors. `width` and `align` change what is learnt; the other fields change only the speed."""

    width: Width = FixedWidth(0)  # padded rows
    align: bool = True  # packed rows start with a document
    device: str = "cpu"
    group: int = 0  # rows of an update, to be ordered by width


def _stored(pairs: Pairs, device: str) -> Pairs:
    """The pairs on the device, or where they are if their tokens would take too much of its memory."""
    return pairs.to(device) if pairs.tokens.nbytes <= ON_DEVICE else pairs


class PaddedRows:
    """Prompt, response, EOS and padding, one example per row."""

    def __init__(
        self, pairs: Pairs, roles: Roles, how: PaddingPolicy, *, noising: Noising, layout: BatchLayout
    ) -> None:
        self.count, self.device = len(pairs), torch.device(layout.device)
        self.host, self.pairs = pairs, _stored(pairs, layout.device)
        every = torch.arange(len(pairs))
        self.longest = int(layout.width(pairs, every, lambda: torch.full((len(pairs),), 1 - 1e-6)).max())
        self.roles, self.how, self.noising, self.layout = roles, how, noising, layout
        self.order = lru_cache(2)(self._order)

    def lengths(self, epoch: int, position: Tensor, mini_batch: int) -> RowLengths:
        example = self.order(epoch)[position]
        width = torch.cat([self._width(epoch, rows) for rows in example.split(mini_batch)])
        cut = torch.minimum(self.host.size[example], width)
        return RowLengths(width, torch.where(self.host.complete[example], width, cut))

    def __call__(self, epoch: int, position: Tensor, width: Tensor | None = None) -> tuple[Batch, At]:
        example = self.order(epoch)[position]
        width = self._width(epoch, example) if width is None else width
        rows = example.to(self.pairs.tokens.device, non_blocking=True)
        batch = lay_out(self.pairs, rows, self.how, self.roles, width=width)
        at = At(torch.full_like(rows, epoch), rows, position)
        return batch.to(self.device), at.to(self.device)

    def _width(self, epoch: int, example: Tensor) -> Tensor:
        key = self.noising.key(torch.full_like(example, epoch), example)
        return self.layout.width(self.host, example, lambda: draw(key, WIDTH))

    def _order(self, epoch: int) -> Tensor:
        """Shuffled. With groups, each update's rows are sorted by width: its mini-batches become even, and the
        update still has the same rows."""
        order = shuffled(self.count, self.noising.seed, epoch)
        if self.layout.group > 1:
            widths = self._width(epoch, order)
            update = torch.arange(self.count) // self.layout.group
            order = order[(update * (int(widths.max()) + 1) + widths).argsort(stable=True)]
        return order


class PackedRows:
    """Documents `prompt response EOS` end to end, cut into rows of fixed length; masks anywhere."""

    def __init__(self, pairs: Pairs, roles: Roles, *, length: int, seed: int, layout: BatchLayout) -> None:
        self.pairs, self.roles = _stored(pairs, layout.device), roles
        self.length, self.align, self.device = length, layout.align, torch.device(layout.device)
        self.longest = length
        self.total = int((pairs.size + pairs.complete).sum())
        self.count = self.total // length
        self.stream = lru_cache(1)(lambda epoch: self._stream(shuffled(len(pairs), seed, epoch)))
        if not self.count:
            raise DataError(
                f"data.length: {length} slots per row, but the data has only {self.total} tokens."
            )

    def _stream(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """The epoch's order of documents, and where each of them ends when they are laid end to end."""
        order = order.to(self.pairs.tokens.device)
        return order, (self.pairs.size + self.pairs.complete)[order].cumsum(0)

    def lengths(self, epoch: int, position: Tensor, mini_batch: int) -> RowLengths:
        whole = torch.full_like(position, self.length)
        return RowLengths(whole, whole)

    def __call__(self, epoch: int, position: Tensor, width: Tensor | None = None) -> tuple[Batch, At]:
        order, ends = self.stream(epoch)
        rows = position.to(ends.device, non_blocking=True)
        begin = rows * self.length
        if self.align:  # back to the start of the document that holds the first slot
            document = torch.searchsorted(ends, begin, right=True)
            begin = torch.where(document > 0, ends[document - 1], 0)
        slot = begin[:, None] + torch.arange(self.length, device=ends.device)
        document = torch.searchsorted(ends, slot, right=True)
        example = order[document]
        offset = slot - torch.where(document > 0, ends[document - 1], 0)
        eos = offset == self.pairs.size[example]
        source = (self.pairs.start[example] + offset).clamp(max=len(self.pairs.tokens) - 1)
        ids = torch.where(eos, self.roles.eos, self.pairs.tokens[source].long())
        everywhere, nowhere = torch.ones_like(eos), torch.zeros_like(eos)
        whole = torch.full_like(rows, self.length)
        batch = Batch(ids, everywhere, eos, nowhere, torch.zeros_like(rows), whole)
        return batch.to(self.device), At(torch.full_like(rows, epoch), rows, rows).to(self.device)


@dataclass(frozen=True)
class BatchShare:
    """Which rows of an update this process computes. Consecutive mini-batches go round the processes."""

    global_batch: int
    micro_batch: int  # rows of a mini-batch
    rank: int = 0
    processes: int = 1
    even: bool = False  # every process makes as many passes, because sharded weights are gathered in each

    def rows(self, rank: int | None = None) -> Tensor:
        """Places within an update of a process's rows, whole mini-batches one after the other."""
        places = torch.arange(self.global_batch).view(-1, self.processes, self.micro_batch)
        return places[:, self.rank if rank is None else rank].flatten()
