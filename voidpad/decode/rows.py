"""The state of decoding: many rows at once, each a prompt and the slots of its answer, with its counters.

Fixed text may also stand between the slots and after them: then the slots are the gaps of a template. "Absolute"
positions are columns of `ids`; a slot's number counts from the start of the canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.roles import Roles

EditKind = Literal["insert", "append", "cut"]
Constraints = tuple[RowConstraint | GapConstraints | None, ...]


@dataclass(frozen=True)
class CanvasEdit:
    """A change of the length of some rows: `count[b]` slots, from absolute position `at[b]` on, appear or go."""

    kind: EditKind
    at: Tensor  # (B,)
    count: Tensor  # (B,) 0 in the rows that the edit leaves alone
    token: int | None = None  # what the new slots hold


@dataclass(frozen=True)
class Rows:
    """Rows between two passes: all that decoding needs to go on. Rows may be selected and joined between passes.

    Row b is ids[b, :stop[b]], its prompt and then its canvas; the rest is padding. On a GPU the captured pass has the
    same state in static buffers; everywhere else it is on the host.
    """

    ids: Tensor  # (B, L) int64
    slots: Tensor  # (B, L) bool, the slots of the answer, masked or written
    prompt: Tensor  # (B,) where the canvas starts
    stop: Tensor  # (B,) where it ends
    key: Tensor  # (B,) draw keys: with the seed they decide a row's random draws
    handle: Tensor  # (B,) identities for caches and callers
    seed: Tensor  # (B,)
    limit: Tensor  # (B,) the longest canvas a length rule may give the row
    block_start: Tensor  # (B,) absolute position at which the open block starts
    entry_masks: Tensor  # (B,) masks of the open block when decoding entered it
    block_passes: Tensor  # (B,) passes used in the open block
    idle_passes: Tensor  # (B,) how many decoding passes, up to now, have changed nothing
    probing: Tensor  # (B,) bool, the canvas length is still being chosen
    settled: Tensor  # (B,) bool, the length rule may no longer change the canvas length
    decoded: Tensor  # (B,) decoding passes
    probed: Tensor  # (B,) probes
    shared: Tensor  # (B,) passes that were a probe and a decoding pass at once
    slot_passes: Tensor  # (B,) canvas slots summed over all passes
    roles: Roles
    constraints: Constraints = ()  # of each row; () if no row has one
    edits: tuple[CanvasEdit, ...] = ()  # changes of length since the tokens of this pass were written

    @classmethod
    def of(cls, ids: Tensor, prompt: Tensor, stop: Tensor, roles: Roles, **known: Any) -> Rows:
        """Rows whose other fields are `known` or 0: all slots are those behind the prompt, keys are 0, 1, 2, ..."""
        zero = torch.zeros_like(prompt)
        if "key" not in known:
            known["key"] = torch.arange(len(ids))
        if "slots" not in known:
            offset = torch.arange(ids.shape[1], device=ids.device)
            known["slots"] = (offset >= prompt[:, None]) & (offset < stop[:, None])
        given = dict.fromkeys(BY_ROW, zero) | {"probing": zero > 0, "settled": zero > 0}
        given |= {"prompt": prompt, "stop": stop, "block_start": prompt, "handle": known["key"]}
        return cls(ids=ids, roles=roles, **{**given, **known})

    @classmethod
    def blank(
        cls, prompts: Sequence[Sequence[int]], length: int | Tensor, roles: Roles, **known: Any
    ) -> Rows:
        """Every prompt followed by `length` masks: one number for all rows, or (B,)."""
        prompt = torch.tensor([len(tokens) for tokens in prompts], dtype=torch.long)
        stop = prompt + length
        ids = torch.full((len(prompts), int(stop.max()) if len(prompts) else 0), roles.eos)
        for row, tokens in enumerate(prompts):
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
            ids[row, len(tokens) : int(stop[row])] = roles.mask
        return cls.of(ids, prompt, stop, roles, **known)

    @classmethod
    def with_gaps(cls, templates: Sequence[Sequence[int]], roles: Roles, **known: Any) -> Rows:
        """Templates whose masks are the slots; a row's canvas reaches from its first mask to its end."""
        whole = cls.blank(templates, 0, roles)
        gaps = whole.inside & (whole.ids == roles.mask)
        return cls.of(whole.ids, first(gaps, otherwise=whole.stop), whole.stop, roles, slots=gaps, **known)

    def __len__(self) -> int:
        return len(self.key)

    # ------------------------------------------------------------------------------------------- what is where
    @property
    def offset(self) -> Tensor:
        """The column numbers (1, L)."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)[None]

    @property
    def inside(self) -> Tensor:
        """True at prompts and canvases, False at padding (B, L)."""
        return self.offset < self.stop[:, None]

    @property
    def masked(self) -> Tensor:
        """True at the slots that hold MASK (B, L)."""
        return self.slots & (self.ids == self.roles.mask)

    @property
    def first_mask(self) -> Tensor:
        """Absolute position of each row's leftmost masked slot; `stop` where there is none."""
        return first(self.masked, otherwise=self.stop)

    @property
    def length(self) -> Tensor:
        """How many slots each row has."""
        return self.slots.sum(1)

    @property
    def first_eos(self) -> Tensor:
        """Absolute position of each row's leftmost EOS on the canvas; `stop` where there is none."""
        return self.first_of((self.roles.eos,))

    def first_of(self, tokens: Sequence[int]) -> Tensor:
        """Absolute position of the leftmost of these tokens on each row's canvas; `stop` where there is none."""
        found = torch.zeros_like(self.slots)
        for token in tokens:
            found = found | (self.ids == token)
        return first(self.slots & found, otherwise=self.stop)

    @property
    def committed_prefix(self) -> Tensor:
        """How many slots at the start of each canvas hold tokens (B,): the slots left of the first mask."""
        return self.first_mask - self.prompt

    @property
    def shortest(self) -> Tensor:
        """The fewest slots (B,) that hold a text of the row's constraint and its end token; 0 for rows without one."""
        least = [one.shortest if isinstance(one, RowConstraint) else 0 for one in self.constraints]
        return torch.tensor(least or [0] * len(self), dtype=torch.long)

    def answer(self, row: int) -> list[int]:
        """All token ids of one row after its prompt, masks and what follows EOS included."""
        return self.ids[row, int(self.prompt[row]) : int(self.stop[row])].tolist()

    # ---------------------------------------------------------------------------------------------- open blocks
    def open_masks(self, block: int) -> Tensor:
        """Masked slots of each row's open block (B, L)."""
        return self.masked & self.in_block(block)

    def in_windows(self, grid: Tensor, width: int) -> Tensor:
        """What a grid (B, L) holds in each row's open block (B, W); 0 (False) past its last column."""
        return pad(grid, (0, width)).gather(1, window_of(self, width))

    def spread(self, values: Tensor, grid: Tensor) -> Tensor:
        """The grid (B, L) with values (B, W) in each row's open block."""
        width = values.shape[1]
        return pad(grid, (0, width)).scatter(1, window_of(self, width), values)[:, : grid.shape[1]]

    def write(self, chosen: Tensor, tokens: Tensor) -> Rows:
        """The rows with these tokens (B, W) in their open blocks where `chosen` (B, W) is True."""
        kept = self.in_windows(self.ids, chosen.shape[1])
        return replace(self, ids=self.spread(torch.where(chosen, tokens, kept), self.ids))

    def in_block(self, block: int) -> Tensor:
        """The positions (B, L) of each row's open block."""
        start = self.block_start[:, None]
        return (self.offset >= start) & (self.offset < start + block)

    def enter(self, start: Tensor, block: int) -> Rows:
        """The same rows with their open blocks at `start` (B,); the counters of a block begin anew where it moved."""
        fresh = start != self.block_start
        moved = replace(self, block_start=start)
        entry = torch.where(fresh, moved.open_masks(block).sum(1), self.entry_masks)
        return replace(moved, entry_masks=entry, block_passes=torch.where(fresh, 0, self.block_passes))

    def advance(self, block: int) -> Rows:
        """The same rows with the open block moved right past full blocks; to `stop` where no mask is ahead."""
        start = self.block_start
        ahead = first(self.masked & (self.offset >= start[:, None]), otherwise=self.stop)
        whole = start + torch.div(ahead - start, block, rounding_mode="floor") * block
        return self.enter(torch.where(ahead < self.stop, whole, self.stop), block)

    def advance_edited(self, block: int, *, changed: Tensor, most: int) -> Rows:
        """`advance` for a rule that edits, after a pass that `changed` (B,) something or did not.

        A block that has become full is entered again without masks, to be edited. It is left after a pass that changed
        nothing, or after `most` passes.
        """
        editing = self.entry_masks == 0  # the block had been full already when it was entered
        leaves = editing & (~changed | (self.block_passes >= most))
        next_block = torch.minimum(self.block_start + block, self.stop)
        moved = self.enter(torch.where(leaves, next_block, self.block_start), block)
        begins = ~editing & ~self.open_masks(block).any(1)
        return replace(
            moved,
            entry_masks=torch.where(begins, 0, moved.entry_masks),
            block_passes=torch.where(begins, 0, moved.block_passes),
        )

    # ---------------------------------------------------------------------------------------------------- edits
    def resize(self, stop: Tensor, token: int | None = None) -> Rows:
        """The rows ending at `stop` (B,): longer tails are cut, new slots hold `token` (default MASK)."""
        token = self.roles.mask if token is None else token
        ids = _widened(self.ids, int(stop.max()) if len(stop) else 0, self.roles.eos)
        offset = torch.arange(ids.shape[1])[None]
        inside = offset < stop[:, None]
        ids = torch.where((offset >= self.stop[:, None]) & inside, token, ids)
        cut = CanvasEdit("cut", torch.minimum(stop, self.stop), (self.stop - stop).clamp(min=0))
        added = CanvasEdit("append", self.stop, (stop - self.stop).clamp(min=0), token)
        slots = inside & (offset >= self.prompt[:, None])
        return replace(self, ids=ids, slots=slots, stop=stop, edits=(*self.edits, cut, added))

    def insert(self, at: Tensor, count: Tensor) -> Rows:
        """The rows with count[b] masks inserted before position at[b]; the slots from there on move right."""
        stop = self.stop + count
        offset = torch.arange(int(stop.max()))[None]
        before, after = offset < at[:, None], offset >= (at + count)[:, None]
        source = torch.where(before, offset, offset - count[:, None]).clamp(0, self.ids.shape[1] - 1)
        ids = torch.where(before | after, self.ids.gather(1, source), self.roles.mask)
        inside = offset < stop[:, None]
        ids = torch.where(inside, ids, self.roles.eos)
        edit = CanvasEdit("insert", at, count, self.roles.mask)
        slots = inside & (offset >= self.prompt[:, None])
        return replace(self, ids=ids, slots=slots, stop=stop, edits=(*self.edits, edit))

    def select(self, rows: Tensor) -> Rows:
        """Only these rows (bool mask or indices), without `edits` and without padding that they do not need."""
        parts = {name: getattr(self, name)[rows] for name in BY_ROW}
        width = int(parts["stop"].max()) if len(parts["stop"]) else 0
        numbers = torch.arange(len(self))[rows].tolist() if self.constraints else ()
        constraints = tuple(self.constraints[number] for number in numbers)
        ids, slots = self.ids[rows][:, :width], self.slots[rows][:, :width]
        return Rows(ids, slots, **parts, roles=self.roles, constraints=constraints)


BY_ROW = tuple(
    field.name
    for field in fields(Rows)
    if field.name not in ("ids", "slots", "roles", "constraints", "edits")
)


def join(groups: Sequence[Rows]) -> Rows:
    """All rows of several groups as one group, as wide as the widest."""
    if len(groups) == 1:
        return groups[0]
    width = max(group.ids.shape[1] for group in groups)
    roles = groups[0].roles
    ids = torch.cat([_widened(group.ids, width, roles.eos) for group in groups])
    slots = torch.cat([_widened(group.slots, width, False) for group in groups])
    parts: dict[str, Any] = {name: torch.cat([getattr(group, name) for group in groups]) for name in BY_ROW}
    constraints: Constraints = ()
    if any(group.constraints for group in groups):
        constraints = tuple(one for group in groups for one in group.constraints or (None,) * len(group))
    return Rows(ids, slots, **parts, roles=roles, constraints=constraints)


def window_of(rows: Rows, width: int) -> Tensor:
    """The positions (B, W) of each row's open block; they may reach past the row's end."""
    return rows.block_start[:, None] + torch.arange(width, device=rows.ids.device)


def _widened(part: Tensor, width: int, value: int) -> Tensor:
    """A tensor (B, L) cut or filled up with `value` to this many columns."""
    missing = max(0, width - part.shape[1])
    return pad(part, (0, missing), value=value)[:, :width]


def first(marked: Tensor, *, otherwise: Tensor) -> Tensor:
    """The column of the first True in each row of `marked` (B, L); `otherwise` (B,) in rows without any."""
    if not marked.shape[1]:
        return otherwise
    return torch.where(marked.any(1), marked.int().argmax(1), otherwise)


def block_end(position: Tensor, block: int) -> Tensor:
    """Where the block of each position ends, counted from position 0: with block-causal attention, a query sees the
    keys before that and no others."""
    return (torch.div(position, block, rounding_mode="floor") + 1) * block


def send(part: Tensor, device: torch.device) -> Tensor:
    """A copy of a host tensor on the device; the host does not wait for the transfer."""
    if device.type != "cuda" or part.is_cuda:
        return part.to(device)
    return part.contiguous().pin_memory().to(device, non_blocking=True)
