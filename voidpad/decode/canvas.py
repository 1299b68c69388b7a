"""The canvas: prompts followed by answer slots, many rows at once, each with its own length.

Fixed text may also stand between the slots and after them: then the slots are the gaps of a template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from voidpad.roles import Roles

EditKind = Literal["insert", "append", "cut"]


@dataclass(frozen=True)
class CanvasEdit:
    """A change of the length of some rows: `count[b]` slots, from absolute position `at[b]` on, appear or go."""

    kind: EditKind
    at: Tensor  # (B,)
    count: Tensor  # (B,) 0 in the rows that the edit leaves alone
    token: int | None = None  # what the new slots hold


@dataclass(frozen=True)
class Canvas:
    """Many rows at once. Row b is ids[b, :stop[b]], its prompt and then its canvas; the rest is padding."""

    ids: Tensor  # (B, L) int64
    prompt: Tensor  # (B,) int64, where the canvas starts
    stop: Tensor  # (B,) int64, where it ends
    key: Tensor  # (B,) int64, draw keys: randomness is a hash of seed and key
    roles: Roles
    handle: Tensor = None  # type: ignore[assignment]  # (B,) int64, row identities for caches; `key` unless given
    gaps: Tensor | None = None  # (B, L) bool, the slots among the canvas; None: all of it
    edits: tuple[CanvasEdit, ...] = ()  # changes of length since the tokens of this pass were written

    def __post_init__(self) -> None:
        if self.handle is None:
            object.__setattr__(self, "handle", self.key)

    @classmethod
    def blank(
        cls,
        prompts: Sequence[Sequence[int]],
        length: int | Tensor,
        roles: Roles,
        keys: Sequence[int],
        handles: Sequence[int] | None = None,
    ) -> Canvas:
        """Every prompt followed by `length` masks: one number for all rows, or (B,)."""
        prompt = torch.tensor([len(p) for p in prompts], dtype=torch.long)
        ids = torch.full(
            (len(prompts), int(prompt.max()) if len(prompts) else 0), roles.eos, dtype=torch.long
        )
        for row, tokens in enumerate(prompts):
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        key = torch.tensor(keys, dtype=torch.long)
        handle = key if handles is None else torch.tensor(handles, dtype=torch.long)
        bare = cls(ids, prompt, prompt, key, roles, handle)
        return replace(bare.resize(prompt + length), edits=())

    @classmethod
    def with_gaps(
        cls,
        templates: Sequence[Sequence[int]],
        roles: Roles,
        keys: Sequence[int],
        handles: Sequence[int] | None = None,
    ) -> Canvas:
        """Templates whose masks are the slots; a row's canvas reaches from its first mask to its end."""
        whole = cls.blank(templates, 0, roles, keys, handles)
        gaps = whole.inside_of(whole.stop) & (whole.ids == roles.mask)
        return replace(whole, prompt=first(gaps, otherwise=whole.stop), gaps=gaps)

    def __len__(self) -> int:
        return len(self.key)

    @cached_property
    def offset(self) -> Tensor:
        """The column numbers."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)[None]  # (1, L)

    @cached_property
    def inside(self) -> Tensor:
        """True at prompts and slots, False at padding."""
        return self.inside_of(self.stop)  # (B, L)

    def inside_of(self, stop: Tensor) -> Tensor:
        """True at the positions (B, L) before `stop` (B,)."""
        return self.offset < stop[:, None]

    @cached_property
    def slots(self) -> Tensor:
        """True at the slots of the answer, masked or written."""
        canvas = self.inside & (self.offset >= self.prompt[:, None])  # (B, L)
        return canvas if self.gaps is None else canvas & self.gaps

    @cached_property
    def masked(self) -> Tensor:
        """True at the slots that hold MASK."""
        return self.slots & (self.ids == self.roles.mask)  # (B, L)

    @cached_property
    def length(self) -> Tensor:
        """How many slots each row has."""
        return self.stop - self.prompt if self.gaps is None else self.slots.sum(1)  # (B,)

    @cached_property
    def first_eos(self) -> Tensor:
        """Absolute position of each row's leftmost EOS on the canvas; `stop` where there is none."""
        return self.first_of((self.roles.eos,))

    def first_of(self, tokens: Sequence[int]) -> Tensor:
        """Absolute position of the leftmost of these tokens on each row's canvas; `stop` where there is none."""
        found = torch.zeros_like(self.slots)
        for token in tokens:
            found = found | (self.ids == token)
        return first(self.slots & found, otherwise=self.stop)

    def fill(self, chosen: Tensor, tokens: Tensor) -> Canvas:
        """The canvas with tokens[b, j] written wherever chosen[b, j] is True."""
        return replace(self, ids=torch.where(chosen, tokens, self.ids), edits=())

    def resize(self, stop: Tensor, token: int | None = None) -> Canvas:
        """The canvas with rows ending at `stop` (B,): longer tails are cut, new slots hold `token` (default MASK)."""
        assert self.gaps is None, "the text behind a gap does not move"
        token = self.roles.mask if token is None else token
        width = int(stop.max()) if len(stop) else 0
        ids = _widened(self.ids, width, self.roles.eos)
        where = torch.arange(width)[None]
        fresh = (where >= self.stop[:, None]) & (where < stop[:, None])
        ids = torch.where(fresh, token, ids)
        cut = CanvasEdit("cut", torch.minimum(stop, self.stop), (self.stop - stop).clamp(min=0))
        added = CanvasEdit("append", self.stop, (stop - self.stop).clamp(min=0), token)
        return replace(self, ids=ids, stop=stop, edits=(*self.edits, cut, added))

    def insert(self, at: Tensor, count: Tensor) -> Canvas:
        """The canvas with count[b] masks inserted before position at[b]; the slots from there on move right."""
        stop = self.stop + count
        where = torch.arange(int(stop.max()))[None]
        before, after = where < at[:, None], where >= (at + count)[:, None]
        source = torch.where(before, where, where - count[:, None]).clamp(0, self.ids.shape[1] - 1)
        ids = torch.where(before | after, self.ids.gather(1, source), self.roles.mask)
        ids = torch.where(where < stop[:, None], ids, self.roles.eos)
        edit = CanvasEdit("insert", at, count, self.roles.mask)
        return replace(self, ids=ids, stop=stop, edits=(*self.edits, edit))

    def select(self, rows: Tensor) -> Canvas:
        """Only these rows (bool mask or indices), with the padding that they do not need cut off."""
        stop = self.stop[rows]
        width = int(stop.max()) if len(stop) else 0
        identity = (self.key[rows], self.roles, self.handle[rows])
        gaps = None if self.gaps is None else self.gaps[rows][:, :width]
        return Canvas(self.ids[rows][:, :width], self.prompt[rows], stop, *identity, gaps)

    def answer(self, row: int) -> list[int]:
        """All token ids of one row after its prompt, masks and what follows EOS included."""
        return self.ids[row, int(self.prompt[row]) : int(self.stop[row])].tolist()


def join(canvases: Sequence[Canvas]) -> Canvas:
    """All rows of several canvases in one, as wide as the widest."""
    if len(canvases) == 1:
        return canvases[0]
    width = max(c.ids.shape[1] for c in canvases)
    ids = [_widened(c.ids, width, c.roles.eos) for c in canvases]
    prompt, stop, key, handle = (
        torch.cat([getattr(c, name) for c in canvases]) for name in ("prompt", "stop", "key", "handle")
    )
    gaps = None
    if any(c.gaps is not None for c in canvases):
        known = [torch.ones_like(c.ids, dtype=torch.bool) if c.gaps is None else c.gaps for c in canvases]
        gaps = torch.cat([_widened(part, width, False) for part in known])
    return Canvas(torch.cat(ids), prompt, stop, key, canvases[0].roles, handle, gaps)


def _widened(part: Tensor, width: int, value: int) -> Tensor:
    """A tensor (B, L, ...) cut or filled up with `value` to this many columns."""
    missing = max(0, width - part.shape[1])
    if not missing:
        return part[:, :width]
    return torch.cat([part, part.new_full((len(part), missing, *part.shape[2:]), value)], 1)


def first(marked: Tensor, *, otherwise: Tensor) -> Tensor:
    """The column of the first True in each row of `marked` (B, L); `otherwise` (B,) in rows without any."""
    if not marked.shape[1]:
        return otherwise
    return torch.where(marked.any(1), marked.int().argmax(1), otherwise)


def send(part: Tensor, device: torch.device) -> Tensor:
    """A copy of a host tensor on the device; the host does not wait for the transfer."""
    if device.type != "cuda" or part.is_cuda:
        return part.to(device)
    return part.contiguous().pin_memory().to(device, non_blocking=True)
