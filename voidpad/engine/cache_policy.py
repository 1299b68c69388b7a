"""Which keys and values a cache keeps between passes. `Caching` is the interface that cache.py asks before each pass.

A policy for networks with full attention is written as text. In the passes over a block after the first one,

    dual        each pass computes the block; `dual:4` every 4th pass the whole row;
    prefix      the block and everything right of it; `prefix:4` every 4th pass the whole row;
    prompt:4    the block, and every 4th pass the prompt as well; `prompt` in every pass;
    ahead:4     the same; besides, a pass that enters a further block computes nothing right of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from voidpad.errors import ConfigError

_N = r"[1-9]\d*"
FORM = rf"(?:prefix|dual|prompt|ahead)(?::{_N})?"
WAYS = (
    "prefix, dual, dual:4 (all every 4 passes), prompt:4 or ahead:4 (the prompt every 4 passes)"  # for users
)


Range = tuple[int, int]  # positions of a row, the second one exclusive


@dataclass(frozen=True)
class CachedRow:
    """A row as it is in a pass, in positions of the row, and the age of its stored keys."""

    prompt: int
    start: int  # of the open block
    end: int  # of the open block, or `stop` if that is less or slots outside the block are asked for
    stop: int  # where the row ends
    final: int  # no pass changes tokens before this: the open block, or a mask that is left of it
    age: int = 0  # passes since the row was computed whole; 0 in that pass


class Caching(Protocol):
    """What a cache keeps between passes. Rows whose stored keys do not serve are computed whole, as far as visible."""

    @property
    def approximation(self) -> str | None:
        """How results name this cache among their approximations; None if it changes no answer."""

    def serves(self, stored: CachedRow, now: CachedRow) -> bool:
        """Whether keys stored when the row was `stored` may be read now that it is `now`; `now.age` says how old."""

    def recomputed(self, stored: CachedRow, now: CachedRow) -> list[Range]:
        """Where keys are computed anew in a row whose stored keys serve, from left to right."""

    def visible(self, now: CachedRow) -> int:
        """A row's tokens see its keys before this position; from there on nothing is computed."""


@dataclass(frozen=True)
class CachePolicy:
    """A cache for full attention: approximate, because there every key depends on the whole row.

    The pass that enters a block computes the whole row. Its further passes recompute the block and what the fields say.
    """

    keep_suffix: bool = True  # False: everything right of the block is recomputed too
    every: int | None = None  # passes after which the whole row is recomputed inside a block; None for never
    prompt: int | None = None  # passes after which the prompt is recomputed; None for never
    keep_ahead: bool = False  # entering a block recomputes the row up to the block's end only

    @classmethod
    def parse(cls, text: str) -> CachePolicy:
        if fault := cache_fault(text):
            raise ConfigError(f"{fault}.")
        kind, _, number = text.partition(":")
        every = int(number) if number else None
        if kind in ("prompt", "ahead"):
            return cls(prompt=every or 1, keep_ahead=kind == "ahead")
        return cls(keep_suffix=kind == "dual", every=every)

    @property
    def approximation(self) -> str:
        if self.prompt:
            kind, number = "ahead" if self.keep_ahead else "prompt", self.prompt if self.prompt > 1 else None
        else:
            kind, number = "dual" if self.keep_suffix else "prefix", self.every
        return f"{kind}:{number} cache" if number else f"{kind} cache"

    def serves(self, stored: CachedRow, now: CachedRow) -> bool:
        same_block = stored.start == now.start or (self.keep_ahead and stored.start < now.start)
        return stored.stop == now.stop and same_block and now.age != self.every

    def recomputed(self, stored: CachedRow, now: CachedRow) -> list[Range]:
        begin = now.start if stored.start == now.start else 0
        part = [(begin, now.end if self.keep_suffix else now.stop)]
        return [(0, now.prompt), *part] if self.prompt and now.age % self.prompt == 0 else part

    def visible(self, now: CachedRow) -> int:
        return now.stop


@dataclass(frozen=True)
class FinishedBlocks:
    """The cache for block-causal attention. It is exact: no key of a block depends on a later block.

    So the keys of all blocks that were final in the last pass are right as they are stored. A pass computes from the
    first other block to the end of the open one; in the further passes over a block, that is the block alone.
    """

    block: int  # of the network's attention, counted from position 0

    approximation = None

    def serves(self, stored: CachedRow, now: CachedRow) -> bool:
        return stored.start <= now.start

    def recomputed(self, stored: CachedRow, now: CachedRow) -> list[Range]:
        full = min(stored.final, stored.end) // self.block * self.block
        return [(min(full, now.start), now.end)]

    def visible(self, now: CachedRow) -> int:
        return now.end


def cache_fault(text: str) -> str | None:
    """What is wrong with this text as a policy; None if nothing is."""
    if re.fullmatch(FORM, text):
        return None
    return f"cache={text!r} is unknown; use {WAYS}, or leave it out for exact decoding"
