"""How a cache is asked for: `prefix` or `dual`, and `dual:4` to compute whole rows anew every 4 passes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voidpad.errors import ConfigError


@dataclass(frozen=True)
class CacheSpec:
    keep_suffix: bool  # dual: what lies right of the block is kept too
    every: int | None = None  # passes after which a row is computed whole; at block entry alone unless told


FORM = r"(prefix|dual)(?::([1-9]\d*))?"


def read_cache(text: str) -> CacheSpec:
    if fault := cache_fault(text):
        raise ConfigError(f"{fault}.")
    found = re.fullmatch(FORM, text)
    assert found is not None
    return CacheSpec(found[1] == "dual", int(found[2]) if found[2] else None)


def cache_fault(text: str) -> str | None:
    if re.fullmatch(FORM, text):
        return None
    ways = "use prefix or dual, dual:4 to refresh it every 4 passes, or leave it out for exact decoding"
    return f"cache={text!r} is unknown; {ways}"


def cache_name(cache: str | None) -> list[str]:
    """As results name the approximation."""
    return [f"{cache} cache"] if cache else []
