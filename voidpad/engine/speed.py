"""Named speeds: which approximations a name stands for, and what they cost on the built-in tasks.

A name is a shorthand for switches. Results, run folders and reports hold the fields of the plan and the cache as if
they had been given one by one. The prices are those of docs/fast.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voidpad.decode.plan import Plan
from voidpad.decode.presets import ALIASES, APPROXIMATE_FIELDS, PRESETS
from voidpad.errors import ConfigError


@dataclass(frozen=True)
class Speed:
    """The approximations of a named speed, and its price against exact decoding in words."""

    price: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the plan
    cache: str | None = None

    @property
    def approximates(self) -> bool:
        return bool(self.fields or self.cache)

    def __str__(self) -> str:
        return " ".join(switched_on(self.fields, self.cache)) or "no approximation"


def switched_on(fields: Mapping[str, Any], cache: str | None) -> list[str]:
    """The approximations among given plan fields, and the cache, each as name=value."""
    given = [f"{name}={value}" for name, value in fields.items() if value and name in APPROXIMATE_FIELDS]
    return [*given, *([f"cache={cache}"] if cache else [])]


# EB-Sampler: several slots a pass, those of least entropy first, while all but the last add up to at most 0.1 nats.
_BOUND = {"entropy_bound": 0.1, "entropy_order": "entropy"}
SPEEDS: dict[str, Speed] = {
    "exact": Speed("loses nothing"),
    "fast": Speed("no loss beyond the interval on the built-in tasks", _BOUND),
    "fastest": Speed("5 points lost on the built-in tasks of one family, 1 of the other", _BOUND, "ahead:3"),
}


def with_speed(
    name: str | None, plan: str | Plan, fields: Mapping[str, Any], cache: str | None
) -> tuple[dict[str, Any], str | None]:
    """The plan fields and the cache, with those of the named speed. None leaves both as they are.

    An approximation given beside a speed is refused: the name stands for what was measured, not for a mixture. So is a
    plan that no speed can change: one of the user's own, one with a commit rule of its own (DAEDAL), a block-causal
    model's.
    """
    if name is None:
        return dict(fields), cache
    if name not in SPEEDS:
        raise ConfigError(f"speed={name!r} is unknown; use one of {', '.join(SPEEDS)}.")
    speed = SPEEDS[name]
    bare = "" if isinstance(plan, Plan) else plan.partition("@")[0]
    preset = PRESETS.get(ALIASES.get(bare, bare))
    if speed.approximates and (preset is None or preset.commit is not None):
        shown = "a ready plan" if isinstance(plan, Plan) else f"plan {plan!r}"
        raise ConfigError(
            f"speed={name} chooses the commit rule of a preset for full attention, and {shown} has its own; "
            "drop the speed."
        )
    given = [
        f"{key}={value}"
        for key, value in fields.items()
        if value is not None and (key in speed.fields or (value and key in APPROXIMATE_FIELDS))
    ]
    given += [f"cache={cache}"] if cache else []
    if given:
        raise ConfigError(f"speed={name} stands for {speed}; drop it or {' and '.join(given)}.")
    return {**fields, **speed.fields}, speed.cache
