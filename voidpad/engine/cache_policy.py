"""Which keys and values a cache keeps between the passes of a block. A policy that recomputes one range of
positions in a pass is added here alone; anything else also changes cache.py.

A policy is written as text: `prefix` or `dual`, and `dual:4` to recompute whole rows every 4 passes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor, minimum

from voidpad.decode.canvas import Canvas
from voidpad.errors import ConfigError

FORM = r"(prefix|dual)(?::([1-9]\d*))?"


@dataclass(frozen=True)
class CachePolicy:
    """What is recomputed in the passes of a block, after the pass that enters it and computes the whole row."""

    keep_suffix: bool = True  # dual: keys right of the block are kept too; prefix: they are recomputed
    every: int | None = None  # passes after which the whole row is recomputed inside a block; None for never

    @classmethod
    def parse(cls, text: str) -> CachePolicy:
        if fault := cache_fault(text):
            raise ConfigError(f"{fault}.")
        parts = re.fullmatch(FORM, text)
        assert parts is not None
        return cls(parts[1] == "dual", int(parts[2]) if parts[2] else None)

    @property
    def approximation(self) -> str:
        """How results name this cache among their approximations."""
        refreshed = f":{self.every}" if self.every else ""
        return f"{'dual' if self.keep_suffix else 'prefix'}{refreshed} cache"

    def is_stale(self, passes: int) -> bool:
        """Whether a row must be computed whole, `passes` passes after it was (that one included)."""
        return passes == self.every

    def recomputed(self, canvas: Canvas, start: Tensor, block: int) -> tuple[Tensor, Tensor]:
        """First and last position (exclusive), each (B,), that a pass inside the block at `start` recomputes."""
        return start, minimum(start + block, canvas.stop) if self.keep_suffix else canvas.stop


def cache_fault(text: str) -> str | None:
    """What is wrong with this text as a policy; None if nothing is."""
    if re.fullmatch(FORM, text):
        return None
    ways = "use prefix or dual, dual:4 to refresh it every 4 passes, or leave it out for exact decoding"
    return f"cache={text!r} is unknown; {ways}"
