"""The canvas: prompts followed by answer slots, many rows at once, each with its own length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from voidpad.roles import Roles

_EMPTY = torch.tensor([-1.0, 0.0], dtype=torch.float64)  # a pair of `Canvas.memory` that holds nothing


@dataclass(frozen=True)
class Canvas:
    """Many rows at once. Row b is ids[b, :stop[b]], its prompt and then its slots; the rest is padding."""

    ids: Tensor  # (B, L) int64
    prompt: Tensor  # (B,) int64, prompt lengths
    stop: Tensor  # (B,) int64, prompt length + canvas length
    key: Tensor  # (B,) int64, draw keys: randomness is a hash of seed and key
    roles: Roles
    handle: Tensor = None  # type: ignore[assignment]  # (B,) int64, row identities for caches; `key` unless given
    # (B, L, K, 2) float64: what a rule remembers of a masked slot, K pairs (token, number); token -1 is an empty pair.
    # Every edit of the canvas moves the memory along with its slots.
    memory: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.handle is None:
            object.__setattr__(self, "handle", self.key)
        if self.memory is None:
            object.__setattr__(self, "memory", torch.zeros(*self.ids.shape, 0, 2, dtype=torch.float64))

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
        return bare.resize(prompt + length)

    def __len__(self) -> int:
        return len(self.key)

    @cached_property
    def offset(self) -> Tensor:
        """The column numbers."""
        return torch.arange(self.ids.shape[1])[None]  # (1, L)

    @cached_property
    def inside(self) -> Tensor:
        """True at prompts and slots, False at padding."""
        return self.offset < self.stop[:, None]  # (B, L)

    @cached_property
    def slots(self) -> Tensor:
        """True at the slots of the answer, masked or written."""
        return self.inside & (self.offset >= self.prompt[:, None])  # (B, L)

    @cached_property
    def masked(self) -> Tensor:
        """True at the slots that hold MASK."""
        return self.slots & (self.ids == self.roles.mask)  # (B, L)

    @cached_property
    def length(self) -> Tensor:
        """How many slots each row has."""
        return self.stop - self.prompt  # (B,)

    @cached_property
    def first_eos(self) -> Tensor:
        """Absolute position of each row's leftmost EOS on the canvas; `stop` where there is none."""
        return self.first_of((self.roles.eos,))

    def first_of(self, tokens: Sequence[int]) -> Tensor:
        """Absolute position of the leftmost of these tokens on each row's canvas; `stop` where there is none."""
        return first(self.slots & torch.isin(self.ids, torch.tensor(tokens)), otherwise=self.stop)

    def fill(self, chosen: Tensor, tokens: Tensor) -> Canvas:
        """The canvas with tokens[b, j] written wherever chosen[b, j] is True; the memory of these slots is dropped."""
        return replace(self.forget(chosen), ids=torch.where(chosen, tokens, self.ids))

    def forget(self, slots: Tensor) -> Canvas:
        """The canvas without the memory of these slots (B, L), or of these rows (B, 1)."""
        if not self.memory.shape[2]:
            return self
        return replace(self, memory=torch.where(slots[:, :, None, None], _EMPTY, self.memory))

    def remember(self, slots: Tensor, pairs: Tensor) -> Canvas:
        """The canvas with the memory of these slots (B, L), N of them, replaced by pairs (N, K, 2)."""
        width = max(pairs.shape[1], self.memory.shape[2])
        memory = _roomier(self.memory, width)
        memory[slots] = _roomier(pairs, width)
        return replace(self, memory=memory)

    def resize(self, stop: Tensor, token: int | None = None) -> Canvas:
        """The canvas with rows ending at `stop` (B,): longer tails are cut, new slots hold `token` (default MASK)."""
        width = int(stop.max()) if len(stop) else 0
        ids = _widened(self.ids, width, self.roles.eos)
        where = torch.arange(width)[None]
        fresh = (where >= self.stop[:, None]) & (where < stop[:, None])
        ids = torch.where(fresh, self.roles.mask if token is None else token, ids)
        sized = replace(self, ids=ids, stop=stop, memory=_widened(self.memory, width, -1))
        return sized.forget(where >= torch.minimum(stop, self.stop)[:, None])

    def insert(self, at: Tensor, count: Tensor) -> Canvas:
        """The canvas with count[b] masks inserted before position at[b]; the slots from there on move right."""
        stop = self.stop + count
        where = torch.arange(int(stop.max()))[None]
        before, after = where < at[:, None], where >= (at + count)[:, None]
        source = torch.where(before, where, where - count[:, None]).clamp(0, self.ids.shape[1] - 1)
        ids = torch.where(before | after, self.ids.gather(1, source), self.roles.mask)
        row = torch.arange(len(self))[:, None]
        moved = replace(
            self,
            ids=torch.where(where < stop[:, None], ids, self.roles.eos),
            stop=stop,
            memory=self.memory[row, source],
        )
        return moved.forget(~(before | after) | (where >= stop[:, None]))

    def select(self, rows: Tensor) -> Canvas:
        """Only these rows (bool mask or indices), with the padding that they do not need cut off."""
        stop = self.stop[rows]
        width = int(stop.max()) if len(stop) else 0
        identity = (self.key[rows], self.roles, self.handle[rows])
        memory = self.memory[rows][:, :width]
        return Canvas(self.ids[rows][:, :width], self.prompt[rows], stop, *identity, memory)

    def answer(self, row: int) -> list[int]:
        """All token ids of one row after its prompt, masks and what follows EOS included."""
        return self.ids[row, int(self.prompt[row]) : int(self.stop[row])].tolist()


def join(canvases: Sequence[Canvas]) -> Canvas:
    """All rows of several canvases in one, as wide as the widest."""
    if len(canvases) == 1:
        return canvases[0]
    width = max(c.ids.shape[1] for c in canvases)
    ids = [_widened(c.ids, width, c.roles.eos) for c in canvases]
    pairs = max(c.memory.shape[2] for c in canvases)
    memory = [_roomier(_widened(c.memory, width, -1), pairs) for c in canvases]
    prompt, stop, key, handle = (
        torch.cat([getattr(c, name) for c in canvases]) for name in ("prompt", "stop", "key", "handle")
    )
    return Canvas(torch.cat(ids), prompt, stop, key, canvases[0].roles, handle, torch.cat(memory))


def _roomier(memory: Tensor, pairs: int) -> Tensor:
    """The memory (..., K, 2) with room for this many pairs, the new ones empty."""
    room = _EMPTY.expand(*memory.shape[:-2], max(0, pairs - memory.shape[-2]), 2)
    return torch.cat([memory, room], -2)


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
    if device.type != "cuda":
        return part.to(device)
    return part.contiguous().pin_memory().to(device, non_blocking=True)
