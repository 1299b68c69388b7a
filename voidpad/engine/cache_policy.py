"""Which keys and values a cache keeps between passes. `Caching` is the interface that cache.py asks before each pass.

A policy for networks with full attention is written as text. Inside a block, after the pass that enters it,

    dual        each pass computes the block;
    prefix      the block and everything right of it;
    prompt:4    the block, and every 4th pass the prompt as well; `prompt` in every pass;
    ahead:4     the same; besides, a pass that enters a further block computes nothing right of it;
    near:16     the block and 16 tokens on either side of it.

One more number, as in `dual:4` or `prompt:4:16`, has the whole row computed that often.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas
from voidpad.decode.plan import Plan
from voidpad.errors import ConfigError

_N = r"[1-9]\d*"
FORM = (
    rf"(?:(?P<kind>prefix|dual)|(?P<part>prompt|ahead)(?::(?P<prompt>{_N}))?|near:(?P<near>{_N}))"
    rf"(?::(?P<every>{_N}))?"
)


@dataclass(frozen=True)
class CachedRow:
    """A row as it was in a pass."""

    ids: Tensor  # (stop,) its prompt and slots
    prompt: int
    start: int  # of the open block
    masks: int  # left in the row
    age: int = 0  # passes since the row was computed whole; 0 in that pass


@dataclass(frozen=True)
class CachePass:
    """The rows of a pass that is about to run, and what is stored of them; everything but the canvas is (B,)."""

    canvas: Canvas
    start: Tensor  # of the open block
    end: Tensor  # of the open block, at most the row's own
    age: Tensor  # passes since the row was computed whole; 0 if its stored keys do not serve: it is computed whole now
    before: Tensor  # start of the block that was open in the row's last pass; `start` where age is 0
    changed: Tensor  # first position whose token differs from the row's last pass; its end where age is 0


class Caching(Protocol):
    """What a cache keeps between passes. Rows whose stored keys do not serve are computed whole, as far as visible."""

    @property
    def approximation(self) -> str | None:
        """How results name this cache among their approximations; None if it changes no answer."""

    def serves(self, stored: CachedRow, now: CachedRow) -> bool:
        """Whether keys stored when the row was `stored` may be read now that it is `now`; `now.age` says how old."""

    def recomputed(self, now: CachePass) -> Tensor:
        """Positions (B, L) whose keys are computed anew in the rows whose stored keys serve."""

    def visible(self, now: CachePass) -> Tensor:
        """Where the keys that a row's tokens see end (exclusive), (B,). Nothing from there on is computed."""


@dataclass(frozen=True)
class CachePolicy:
    """A cache for full attention: approximate, because there every key depends on the whole row.

    The pass that enters a block computes the whole row. Its further passes recompute the block and what the fields say.
    """

    keep_suffix: bool = True  # False: everything right of the block is recomputed too
    every: int | None = None  # passes after which the whole row is recomputed inside a block; None for never
    prompt: int | None = None  # passes after which the prompt is recomputed; None for never
    near: int = 0  # tokens left and right of the block that are recomputed with it
    keep_ahead: bool = False  # entering a block recomputes the row up to the block's end only

    @classmethod
    def parse(cls, text: str) -> CachePolicy:
        if fault := cache_fault(text):
            raise ConfigError(f"{fault}.")
        parts = re.fullmatch(FORM, text)
        assert parts is not None
        every, prompt, near = (
            int(parts[name]) if parts[name] else None for name in ("every", "prompt", "near")
        )
        return cls(
            keep_suffix=parts["kind"] != "prefix",
            every=every,
            prompt=prompt or (1 if parts["part"] else None),
            near=near or 0,
            keep_ahead=parts["part"] == "ahead",
        )

    @property
    def approximation(self) -> str:
        kind = "dual" if self.keep_suffix else "prefix"
        if self.prompt:
            kind = "ahead" if self.keep_ahead else "prompt"
            kind += f":{self.prompt}" if self.prompt > 1 or self.every else ""
        elif self.near:
            kind = f"near:{self.near}"
        return f"{kind}:{self.every} cache" if self.every else f"{kind} cache"

    def serves(self, stored: CachedRow, now: CachedRow) -> bool:
        return (
            (stored.prompt, len(stored.ids)) == (now.prompt, len(now.ids))
            and (stored.start == now.start or (self.keep_ahead and stored.start < now.start))
            and now.age != self.every
            # Without an engine a handle may come back with another prompt, or with the same one from its start.
            and now.masks <= stored.masks
            and torch.equal(stored.ids[: stored.prompt], now.ids[: now.prompt])
        )

    def recomputed(self, now: CachePass) -> Tensor:
        offset, stop = now.canvas.offset, now.canvas.stop
        end = torch.minimum(now.end + self.near, stop) if self.keep_suffix else stop
        begin = torch.where(now.before == now.start, now.start - self.near, 0)
        part = (offset >= begin[:, None]) & (offset < end[:, None])
        if self.prompt:
            due = now.age % self.prompt == 0
            part |= due[:, None] & (offset < now.canvas.prompt[:, None])
        return part

    def visible(self, now: CachePass) -> Tensor:
        return now.canvas.stop


@dataclass(frozen=True)
class FinishedBlocks:
    """The cache for block-causal attention. It is exact: no key of a block depends on a later block.

    So the keys of all blocks before the first token that changed since the last pass are right as they are stored. A
    pass computes from there to the end of the open block; inside a block, that is the block alone.
    """

    block: int  # of the network's attention, counted from position 0

    approximation = None

    def serves(self, stored: CachedRow, now: CachedRow) -> bool:
        return True

    def recomputed(self, now: CachePass) -> Tensor:
        # What the last pass left: at least the block that was open then is stored, with the tokens of then.
        stored = torch.minimum(now.changed, now.before + self.block)
        begin = torch.minimum(stored - stored % self.block, now.start)
        offset = now.canvas.offset
        return (offset >= begin[:, None]) & (offset < now.end[:, None])

    def visible(self, now: CachePass) -> Tensor:
        return now.end


def check_cacheable(plan: Plan) -> None:
    """Refuse a plan whose blocks have no fixed places: a cache tells the open block by the plan's block size."""
    if plan.blocks is not None:
        raise ConfigError(
            f"delimiter_threshold={plan.blocks.delimiter_threshold} makes blocks of unequal length, and a cache keeps "
            "keys by blocks of one size; drop one of them."
        )


def cache_fault(text: str) -> str | None:
    """What is wrong with this text as a policy; None if nothing is."""
    if re.fullmatch(FORM, text):
        return None
    ways = (
        "use prefix or dual, dual:4 to compute whole rows every 4 passes, prompt:4 or ahead:4 to compute the prompt "
        "every 4 passes, near:16 to compute 16 tokens beside the block in each, or leave it out for exact decoding"
    )
    return f"cache={text!r} is unknown; {ways}"
