"""The rows of an update and the passes that compute them.

Rows are a pure function of their place in the run, built by tensor operations on the device. Row `p` of epoch `e` is
the same row with the same noise however the run is divided, because every draw is a hash of (seed, epoch, example):
nothing depends on the number of processes, on restarts or on what is computed in one pass.

A mini-batch says what is learnt: how far its rows are padded and by what its loss is divided. A pass is only work, so
it may hold several mini-batches or a part of one. The loss is a weighted sum over slots and every slot carries its
weight, so the gradients of an update do not depend on its passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from voidpad.errors import DataError
from voidpad.roles import Roles
from voidpad.training.losses import WIDTH, Objective, Origin, Pass, Segments, Slots, draw, row_key
from voidpad.training.padding import POLICIES, Batch, batch_width, lay_out
from voidpad.training.prepared import Pairs
from voidpad.training.recipe import PaddingPart

# Bytes of tokens that may live on the GPU; larger data stays on the host, mapped from its file.
DEVICE_BYTES = 4 << 30
# A row shorter than this share of a pass's longest row begins another pass, unless padding it costs less than a pass.
SHORTEST_SHARE = 0.75


def shuffled(count: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def row_widths(part: PaddingPart, pairs: Pairs, rows: Tensor, draws: Tensor) -> Tensor:
    """How far the examples `rows` (B,) of a mini-batch are padded, (B,). `draws` is a uniform number for each row.

    - A number: all to so many slots.
    - `batch`: to the paper's S_B, the maximum over the mini-batch.
    - `window`: to a canvas after the prompt, drawn evenly. A longer answer is cut, without an EOS: if every row held
      its whole answer, a model would learn that any canvas, however short, is long enough.
    """
    sizes = pairs.size[rows]
    if isinstance(part.width, int):
        return torch.full_like(rows, part.width)
    if part.width == "window":
        low, high = part.window
        return pairs.prompt[rows] + low + (draws * (high - low + 1)).long()
    return batch_width(sizes, eos=part.longest_row_gets_eos or POLICIES[part.policy].longest_row_gets_eos)


def _stored(pairs: Pairs, device: torch.device) -> Pairs:
    """The pairs on the device, or where they are if their tokens would take too much of its memory."""
    return pairs.to(device) if pairs.tokens.nbytes <= DEVICE_BYTES else pairs


class PaddedRows:
    """Prompt, response, EOS and padding, one example per row. Positions (B,) in an epoch's order live on the host."""

    def __init__(
        self, pairs: Pairs, roles: Roles, part: PaddingPart, *, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        self.count, self.device = len(pairs), torch.device(device)
        self.host, self.pairs = pairs, _stored(pairs, self.device)
        self.roles, self.part, self.seed = roles, part, seed
        widest = row_widths(part, pairs, torch.arange(len(pairs)), torch.full((len(pairs),), 1 - 1e-6))
        self.longest = int(torch.where(pairs.has_gaps, pairs.size, widest).max())  # slots of the longest row
        self.order = lru_cache(2)(lambda epoch: shuffled(len(pairs), seed, epoch))

    def lengths(self, epoch: int, position: Tensor, mini_batch: int) -> tuple[Tensor, Tensor]:
        """How far each row is padded, and its slots, both (B,): fewer where an answer was cut.

        The rows are mini-batches of so many rows, one after the other.
        """
        example = self.order(epoch)[position]
        draws = draw(row_key(self.seed, epoch, example), WIDTH)
        parts = zip(example.split(mini_batch), draws.split(mini_batch), strict=True)
        width = torch.cat([row_widths(self.part, self.host, *part) for part in parts])
        size = self.host.size[example]
        width = torch.where(self.host.has_gaps[example], size, width)
        return width, torch.where(self.host.complete[example], width, torch.minimum(size, width))

    def batch(self, epoch: int, position: Tensor, width: Tensor) -> tuple[Batch, Origin]:
        """The rows, each padded to its own width (B,)."""
        example = self.order(epoch)[position]
        rows = example.to(self.pairs.tokens.device, non_blocking=True)
        batch = lay_out(self.pairs, rows, POLICIES[self.part.policy], self.roles, width=width)
        return batch.to(self.device), Origin(epoch, rows, position).to(self.device)


class PackedRows:
    """Documents `prompt response EOS` end to end; masks anywhere.

    There are as many rows as pieces of `length` slots. A row begins with the document that its piece begins in.
    """

    def __init__(
        self, pairs: Pairs, roles: Roles, length: int, *, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        self.device, self.roles, self.seed = torch.device(device), roles, seed
        self.pairs, self.longest = _stored(pairs, self.device), length
        total = int((pairs.size + pairs.complete).sum())
        self.count = total // length
        if not self.count:
            raise DataError(f"data.length: {length} slots a row, but the data has only {total} tokens.")
        self.documents = lru_cache(1)(self._documents)

    def _documents(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The epoch's order of documents, and where each of them ends when they are laid end to end."""
        order = shuffled(len(self.pairs), self.seed, epoch).to(self.pairs.tokens.device)
        return order, (self.pairs.size + self.pairs.complete)[order].cumsum(0)

    def lengths(self, epoch: int, position: Tensor, mini_batch: int) -> tuple[Tensor, Tensor]:
        length = torch.full_like(position, self.longest)
        return length, length

    def batch(self, epoch: int, position: Tensor, width: Tensor) -> tuple[Batch, Origin]:
        """The rows, which all have one length; `width` is that of PaddedRows."""
        order, ends = self.documents(epoch)
        rows = position.to(ends.device, non_blocking=True)
        document = torch.searchsorted(ends, rows * self.longest, right=True)
        begin = torch.where(document > 0, ends[document - 1], 0)
        slot = begin[:, None] + torch.arange(self.longest, device=ends.device)
        document = torch.searchsorted(ends, slot, right=True)
        example = order[document]
        offset = slot - torch.where(document > 0, ends[document - 1], 0)
        eos = offset == self.pairs.size[example]
        source = (self.pairs.start[example] + offset).clamp(max=len(self.pairs.tokens) - 1)
        ids = torch.where(eos, self.roles.eos, self.pairs.tokens[source].long())
        everywhere, nowhere = torch.ones_like(eos), torch.zeros_like(eos)
        batch = Batch(ids, everywhere, eos, nowhere, everywhere)
        return batch.to(self.device), Origin(epoch, rows, rows).to(self.device)


# Passes


@dataclass(frozen=True)
class BatchShare:
    """Which rows of an update this process computes. Consecutive mini-batches go round the processes."""

    global_batch: int
    micro_batch: int  # rows of a mini-batch
    rank: int = 0
    processes: int = 1
    even: bool = False  # every process makes as many passes, because each gathers sharded weights

    def rows(self, rank: int) -> Tensor:
        """Places within an update of a process's rows, whole mini-batches one after the other."""
        places = torch.arange(self.global_batch).view(-1, self.processes, self.micro_batch)
        return places[:, rank].flatten()


@dataclass
class PassLimit:
    """How large a pass may be and how its rows lie. `tokens` is lowered when a pass does not fit."""

    tokens: int = 4096  # a longer row is a pass of its own
    end_to_end: bool = False  # rows in one sequence; otherwise padded to the longest row of the pass
    multiple: int = 1  # the sequence, or each padded row, is brought to a multiple of this: few shapes
    small: int = 0  # tokens of a padded pass up to which a further pass would cost more than uneven rows

    def rounded(self, tokens: int) -> int:
        return -(-tokens // self.multiple) * self.multiple

    def size(self, rows: int, longest: int, total: int) -> int:
        """Tokens that a pass of so many rows computes: the longest of them, and all together, have so many."""
        return self.rounded(total) if self.end_to_end else rows * self.rounded(longest)


def plan(lengths: Sequence[int], limit: PassLimit, *, least: int = 1) -> list[list[int]]:
    """Rows, by number, divided into passes, long rows first; no fewer passes than `least`."""
    passes: list[list[int]] = []
    longest = total = 0  # tokens of the last pass's first row, and of all its rows
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        length = lengths[row]
        size = limit.size(len(passes[-1]) + 1, longest, total + length) if passes else math.inf
        alike = limit.end_to_end or size <= limit.small or length >= SHORTEST_SHARE * longest
        if size <= limit.tokens and alike:
            passes[-1].append(row)
            total += length
        else:
            passes.append([row])
            longest = total = length
    while len(passes) < least:
        largest = max(passes, key=len)
        passes.append(largest[len(largest) // 2 :])
        del largest[len(largest) // 2 :]
    return passes


@dataclass
class UpdatePasses:
    """`passes[u]` are the passes that compute this process's rows of update number u."""

    rows: PackedRows | PaddedRows
    objective: Objective
    share: BatchShare
    limit: PassLimit
    side: torch.cuda.Stream | None = None  # where passes are built on a GPU

    @property
    def updates_per_epoch(self) -> int:
        return -(-self.rows.count // self.share.global_batch)

    def __getitem__(self, update: int) -> list[Pass]:
        """Where every process must make as many passes, each finds the largest number by itself."""
        ranks = range(self.share.processes) if self.share.even else ()
        least = max((len(self.planned(update, rank)) for rank in ranks), default=1)
        return self.over(*self._place(update, self.share.rank), least=least)

    def planned(self, update: int, rank: int = 0) -> list[list[int]]:
        """The lengths of the rows in each pass of an update, in the process of that rank."""
        epoch, position = self._place(update, rank)
        lengths = self.rows.lengths(epoch, position, self.share.micro_batch)[1].tolist()
        return [[lengths[row] for row in rows] for rows in plan(lengths, self.limit)]

    def _place(self, update: int, rank: int) -> tuple[int, Tensor]:
        """The epoch of an update, and where in the epoch's order the rows of a process stand."""
        epoch, update = divmod(update, self.updates_per_epoch)
        return epoch, (update * self.share.global_batch + self.share.rows(rank)) % self.rows.count

    def over(self, epoch: int, position: Tensor, *, least: int = 1) -> list[Pass]:
        """The passes over the rows at `position` (B,) of an epoch: mini-batches one after the other.

        Their losses add up to the mean over these mini-batches, each counted by its rows. On a GPU they are built in a
        CUDA stream of its own. Counting the loss slots waits for the device: here for these rows alone and not for
        the step still running, so the device never goes idle between steps.
        """
        if self.rows.device.type != "cuda":
            return self._build(epoch, position, least)
        main = torch.cuda.current_stream()
        if self.side is None:
            torch.cuda.synchronize()  # the data's own upload
            self.side = torch.cuda.Stream(priority=-1)
        with torch.cuda.stream(self.side):
            passes = self._build(epoch, position, least)
        main.wait_stream(self.side)
        for one in passes:
            for part in (one, one.slots, one.segments):
                for value in vars(part).values() if part else ():
                    if isinstance(value, Tensor):
                        value.record_stream(main)
        return passes

    def _build(self, epoch: int, position: Tensor, least: int) -> list[Pass]:
        """Lay out all rows in the order of their passes, hide their slots, and cut both into passes."""
        width, end = self.rows.lengths(epoch, position, self.share.micro_batch)
        planned = plan(end.tolist(), self.limit, least=least)
        order = torch.tensor([row for rows in planned for row in rows])
        batch, origin = self.rows.batch(epoch, position[order], width[order])
        noised = self.objective.noise(batch, origin)
        mini_batch = (order // self.share.micro_batch).to(batch.ids.device, non_blocking=True)
        slots = self.objective.loss_slots(batch, noised, mini_batch)
        columns = batch.ids.shape[1]
        bounds = list(accumulate(map(len, planned), initial=0))
        edges = torch.tensor([row * columns for row in bounds]).to(slots.where.device, non_blocking=True)
        cuts = torch.searchsorted(slots.where, edges).tolist()
        passes = []
        for (first, last), (a, b) in zip(pairwise(bounds), pairwise(cuts), strict=True):
            ids, lengths = noised.ids[first:last], end[order[first:last]]
            part = Slots(*(value[a:b] for value in vars(slots).values()))
            row, column, tokens = part.where // columns - first, part.where % columns, int(lengths.sum())
            if self.limit.end_to_end:
                sequence, start, segments = self._end_to_end(ids, lengths)
                part = replace(part, where=start[row] + column)
                passes.append(Pass(sequence, part, tokens, segments=segments))
                continue
            longest = self.limit.rounded(int(lengths.max()))
            part = replace(part, where=row * longest + column)
            # Where nothing is hidden no mask is given: the plain attention kernel is the fast one.
            inside = _columns(batch.inside[first:last], longest) if bool((lengths < longest).any()) else None
            passes.append(Pass(_columns(ids, longest), part, tokens, inside))
        return passes

    def _end_to_end(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Segments]:
        """Rows (R, S) as one sequence (1, T), where each row begins (R,), and the same for attention.

        The filler after the rows is a row of its own; rows of length zero bring their number to a power of two, again
        for few shapes.
        """
        device, tokens = ids.device, int(lengths.sum())
        spare = self.limit.rounded(tokens) - tokens
        start = lengths.cumsum(0) - lengths
        number = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        positions = torch.arange(tokens) - start[number]
        source = (number * ids.shape[1] + positions).to(device, non_blocking=True)
        count = len(lengths) + bool(spare)
        empty = (1 << (count - 1).bit_length()) - count if self.limit.multiple > 1 else 0
        rows = torch.cat([lengths, torch.tensor([spare] * bool(spare) + [0] * empty, dtype=torch.long)])
        segments = Segments(
            F.pad(positions, (0, spare)).to(device, non_blocking=True),
            F.pad(rows.cumsum(0), (1, 0)).int().to(device, non_blocking=True),
            max(self.rows.longest, spare),
        )
        sequence = F.pad(ids.flatten()[source], (0, spare))
        return sequence[None], start.to(device, non_blocking=True), segments


def _columns(rows: Tensor, columns: int) -> Tensor:
    """(R, S) cut or filled with zeros to so many columns."""
    return F.pad(rows, (0, columns - rows.shape[1])) if columns > rows.shape[1] else rows[:, :columns]
