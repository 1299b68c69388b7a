"""Plans: a choice of every rule, as one value; and the presets people ask for by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from voidpad.decode.commit import Commit, Factor, Quota, Threshold, TopK, dream, even
from voidpad.decode.length import (
    SCHEDULES,
    Daedal,
    Fixed,
    Length,
    RhoEos,
    Rounding,
    SmartCrop,
    Trimmed,
    VoidExpansion,
    at_end,
    before_first_eos,
    density,
    tail_confidence,
)
from voidpad.decode.propose import (
    MaskLast,
    Noised,
    Propose,
    Score,
    Tempered,
    confidence,
    margin,
    neg_entropy,
    random,
)
from voidpad.decode.stop import Stop, eos_termination, vanilla
from voidpad.errors import ConfigError

Names = tuple[str | int, ...]  # role names or token ids

SCORES: dict[str, Score] = {f.__name__: f for f in (confidence, neg_entropy, margin, random)}
QUOTAS: dict[str, Quota] = {"even": even, "dream": dream}
STOPS: dict[str, Stop] = {"vanilla": vanilla, "eos": eos_termination}
SIGNALS = {"density": density, "tail_confidence": tail_confidence}
PLACES = {"end": at_end, "before_first_eos": before_first_eos}
ROUNDINGS = {"tolerant": Rounding(), "float32": Rounding(torch.float32, 0.0)}


@dataclass(frozen=True)
class Plan:
    """How to decode. Frozen, printable, comparable: a sweep cell, a cache key and a run record."""

    length: Length = Fixed()
    propose: Propose = Noised()
    commit: Commit = TopK()
    stop: Stop = vanilla
    block: int = 32
    ban: Names = ()  # never chosen
    mute: Names = ()  # left out of the scored distribution
    cut: bool = True  # the answer ends at the first EOS, whatever was written after it

    @property
    def steps(self) -> int:
        """Passes per block."""
        return self.commit.steps or self.block if isinstance(self.commit, TopK) else self.block

    @property
    def approximations(self) -> tuple[str, ...]:
        """What makes this plan faster than one token a pass on the full canvas, at some risk."""
        named = (
            ("threshold", isinstance(self.commit, Threshold)),
            ("factor", isinstance(self.commit, Factor)),
        )
        found = [name for name, on in (*named, ("trim", isinstance(self.length, Trimmed))) if on]
        return tuple(found) if not isinstance(self.propose, MaskLast) else ()

    @property
    def patience(self) -> int:
        """Passes without a change after which a row counts as stalled."""
        return self.length.patience(self.block, self.steps)


HELP = {
    "canvas": "canvas length; for rules that adapt it, where they start",
    "limit": "longest canvas the rule may reach",
    "block": "block size: slots open for writing at a time",
    "steps": "passes in total for a fixed canvas, passes per block otherwise (default: one token a pass)",
    "stop": "vanilla, or eos: stop when nothing before the leftmost EOS is masked",
    "ban": "roles or ids never chosen, separated by commas",
    "mute": "roles or ids left out of the scores (overrides `scores`)",
    "scores": "unbanned: banned tokens keep their mass in the scores; renormalised: they do not",
    "score": "confidence, neg_entropy, margin or random",
    "temperature": "0 is greedy",
    "top_p": "nucleus filter (Dream family, temperature > 0)",
    "top_k": "top-k filter (Dream family, temperature > 0; 0 is off)",
    "schedule": "even or dream: how a block's slots spread over its passes",
    "trim": "cut the canvas right after a committed EOS (approximate; needs stop=eos)",
    "threshold": "write every slot at least this sure, instead of a schedule (0 is off)",
    "factor": "factor commits, instead of a schedule (0 is off)",
    "cut": "cut the answer at the first EOS",
    "mask_proposable": "let MASK be proposed, as the authors' code does",
    "window": "tail slots that VoidExpansion reads",
    "tau_nonvoid": "largest mean probability of the best non-VOID token in the tail",
    "tau_gap": "smallest mean of P(VOID) minus that probability",
    "cap_rounding": "ceil or floor: the limit in whole blocks",
    "mask_in_max": "count MASK among the non-VOID tokens",
    "tau": "cumulative EOS probability at which SmartCrop crops",
    "high": "a slot surer than this is written",
    "low": "a slot less sure than this grows",
    "grow": "masks added by one growth",
    "enough": "EOS confidence that ends DAEDAL's first stage",
    "content": "EOS confidence above which DAEDAL grows nothing",
    "check": "EOS slots counted from the tail",
    "unit": "smallest length edit of rho-EOS",
    "rho_low": "expand below this EOS density",
    "rho_high": "contract above this EOS density",
    "interval": "width of a density segment",
    "scheduler": "const, linear or exp: how edits grow with the gap",
    "cap": "largest multiple of the unit in one edit",
    "adjust": "passes that may edit the length",
    "minimum": "shortest canvas a contraction leaves (-1: one block)",
    "signal": "density or tail_confidence",
    "insert_at": "end or before_first_eos",
    "rounding": "tolerant or float32",
}

AUTHORS: dict[str, dict[str, Any]] = {  # the switches of the authors' code, by preset; "" is all of them
    "": {"mask_proposable": True},
    "void-expansion": {"cap_rounding": "floor", "mask_in_max": True},
    "rho-eos": {"insert_at": "before_first_eos", "rounding": "float32", "minimum": 0},
}


@dataclass
class Knobs:
    """Fields of a preset on their way into a plan: who set what, and what was left over."""

    family: str
    given: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)

    def __call__(self, name: str, default: Any) -> Any:
        value = self.values[name] = self._typed(name, self.given.get(name, default), default)
        return value

    def one_of(self, name: str, default: str, table: Mapping[str, Any]) -> Any:
        value = self(name, default)
        if value not in table:
            raise ConfigError(f"{name}={value!r} is unknown; use one of {', '.join(table)}.")
        return table[value]

    def names(self, name: str, default: Names) -> Names:
        value = self.values[name] = self.given.get(name, default)
        parts = value.split(",") if isinstance(value, str) else value
        tidy = [p.strip() if isinstance(p, str) else p for p in parts]
        return tuple(int(p) if isinstance(p, str) and p.isdigit() else p for p in tidy if p != "")

    @staticmethod
    def _typed(name: str, value: Any, default: Any) -> Any:
        kind = type(default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(
                f"{name}={value!r} must be of type {kind.__name__}; the default is {default!r}."
            )
        if kind is float and not math.isfinite(value):
            raise ConfigError(f"{name}={value} is no number; the default is {default!r}.")
        return value


def blocks(knobs: Knobs, name: str, default: int, block: int) -> int:
    """A length that must be whole blocks."""
    value = positive(name, knobs(name, default))
    if value % block:
        raise ConfigError(
            f"{name}={value} is not a multiple of block={block}; use {block * -(-value // block)}."
        )
    return value


def fixed(knobs: Knobs, block: int) -> tuple[Length, int]:
    canvas = blocks(knobs, "canvas", 512, block)
    total, count = positive("steps", knobs("steps", canvas)), canvas // block
    if total % count:
        raise ConfigError(f"steps={total} does not spread over {count} blocks; use a multiple of {count}.")
    return Fixed(canvas), total // count


def expansion(knobs: Knobs, block: int) -> tuple[Length, int]:
    tau_nonvoid, tau_gap = (0.15, 0.55) if knobs.family == "dream" else (0.09, -0.45)
    canvas = math.ceil(positive("canvas", knobs("canvas", 64)) / block) * block
    asked = knobs("limit", 512)
    rounded = knobs.one_of("cap_rounding", "ceil", {"ceil": math.ceil, "floor": math.floor})
    limit = rounded(asked / block) * block
    if canvas > limit:
        raise ConfigError(
            f"limit={asked} gives {limit} slots, below the start of {canvas}; raise limit or lower canvas."
        )
    length = VoidExpansion(
        canvas,
        limit,
        positive("window", knobs("window", 16)),
        knobs("tau_nonvoid", tau_nonvoid),
        knobs("tau_gap", tau_gap),
        knobs("mask_in_max", False),
    )
    return length, positive("steps", knobs("steps", block))


def smart_crop(knobs: Knobs, block: int) -> tuple[Length, int]:
    canvas, tau = blocks(knobs, "canvas", 512, block), knobs("tau", 0.95)
    if not 0 < tau <= 1:
        raise ConfigError(f"tau={tau} must lie in (0, 1].")
    return SmartCrop(canvas, tau), positive("steps", knobs("steps", block))


def daedal(knobs: Knobs, block: int) -> tuple[Length, int]:
    rule = Daedal(
        positive("canvas", knobs("canvas", 64)),
        knobs("limit", 2048),
        positive("grow", knobs("grow", 8)),
        knobs("low", 0.1),
        knobs("enough", 0.5),
        knobs("content", 0.9),
        positive("check", knobs("check", 32)),
    )
    return bounded(rule), block


def rho_eos(knobs: Knobs, block: int) -> tuple[Length, int]:
    minimum = knobs("minimum", -1)
    rule = RhoEos(
        canvas=positive("canvas", knobs("canvas", 64)),
        limit=knobs("limit", 2048),
        unit=positive("unit", knobs("unit", 8)),
        rho_low=knobs("rho_low", 0.4),
        rho_high=knobs("rho_high", 0.6),
        interval=knobs("interval", 0.1),
        schedule=knobs("scheduler", "exp"),
        cap=positive("cap", knobs("cap", 8)),
        adjust=knobs("adjust", 64),
        check=positive("check", knobs("check", 32)),
        minimum=None if minimum < 0 else minimum,
        read=knobs.one_of("signal", "density", SIGNALS),
        insert_at=knobs.one_of("insert_at", "end", PLACES),
        rounding=knobs.one_of("rounding", "tolerant", ROUNDINGS),
    )
    if not rule.rho_low <= rule.rho_high or rule.interval <= 0:
        raise ConfigError(
            f"rho_low={rule.rho_low} must not exceed rho_high={rule.rho_high}, "
            f"and interval={rule.interval} must be more than 0."
        )
    if rule.schedule not in SCHEDULES:
        raise ConfigError(f"scheduler={rule.schedule!r} is unknown; use one of {', '.join(SCHEDULES)}.")
    return bounded(rule), block


def bounded(rule: Daedal | RhoEos) -> Length:
    if rule.limit < rule.canvas:
        raise ConfigError(f"limit={rule.limit} is below canvas={rule.canvas}; raise limit or lower canvas.")
    return rule


def positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name}={value} must be at least 1.")
    return value


@dataclass(frozen=True)
class Preset:
    """A named way to decode: its length rule, what it bans and when it stops."""

    length: Callable[[Knobs, int], tuple[Length, int]]
    ban: Names = ()
    stop: str = "vanilla"
    confident: bool = False  # DAEDAL's and rho-EOS's own proposal and commit
    about: str = ""


PRESETS = {
    "original": Preset(fixed, about="fixed canvas, decoded to the end: instruct models as released"),
    "void": Preset(fixed, ("void",), "eos", about="fixed canvas, VOID banned, [EOS]Termination"),
    "void-expansion": Preset(
        expansion, ("void",), "eos", about="the canvas grows until its tail reads as VOID"
    ),
    "daedal": Preset(
        daedal, confident=True, about="DAEDAL: grow by EOS confidence, then where the model is unsure"
    ),
    "rho-eos": Preset(
        rho_eos, confident=True, about="rho-EOS: grow or shrink by the density of EOS predictions"
    ),
    "smart-crop": Preset(smart_crop, about="SmartCrop: one probe, cropped by cumulative EOS probability"),
}
ALIASES = {"eos": "original", "rainbow": "original"}


def plan(
    name: str = "void", *, family: str = "llada", calibration: Mapping[str, Any] | None = None, **fields: Any
) -> Plan:
    """The preset `name`; fields given here win over the checkpoint's calibration and the defaults."""
    return describe(name, family=family, calibration=calibration, **fields)[0]


def describe(
    name: str, *, family: str = "llada", calibration: Mapping[str, Any] | None = None, **fields: Any
) -> tuple[Plan, dict[str, Any]]:
    """The plan, and every field it was built from."""
    bare, _, variant = name.partition("@")
    base = ALIASES.get(bare, bare)
    if base not in PRESETS or variant not in ("", "authors"):
        known = ", ".join([*PRESETS, *ALIASES])
        raise ConfigError(f"plan {name!r} is unknown; use one of {known}, or <plan>@authors.")
    parity = {**AUTHORS[""], **AUTHORS.get(base, {})} if variant else {}
    if variant and family == "llada":
        parity["cut"] = False
    if PRESETS[base].confident:
        parity.pop("mask_proposable", None)
    given = {
        **(calibration or {}).get(base, {}),
        **parity,
        **{k: v for k, v in fields.items() if v is not None},
    }
    knobs = Knobs(family, given)
    built = build(PRESETS[base], knobs)
    unused = sorted(set(given) - set(knobs.values))
    if unused:
        raise ConfigError(
            f"plan {name!r} has no field {', '.join(unused)}; it has {', '.join(sorted(knobs.values))}."
        )
    return built, knobs.values


def build(preset: Preset, knobs: Knobs) -> Plan:
    block = positive("block", knobs("block", 32))
    length, steps = preset.length(knobs, block)
    ban = knobs.names("ban", preset.ban)
    stop = knobs.one_of("stop", preset.stop, STOPS)
    if preset.confident:
        return Plan(
            length,
            MaskLast(),
            Threshold(knobs("high", 0.9), strict=True),
            stop,
            block,
            ban,
            (),
            knobs("cut", True),
        )
    commit = commits(knobs, steps)
    renormalise = knobs.one_of(
        "scores",
        "renormalised" if knobs.family == "dream" else "unbanned",
        {"renormalised": True, "unbanned": False},
    )
    mute = knobs.names("mute", ban if renormalise else ())
    if knobs("trim", False):
        if stop is not eos_termination:
            raise ConfigError("trim=True drops what follows an EOS, so it needs stop=eos.")
        length = Trimmed(length)
    return Plan(length, proposal(knobs, commit), commit, stop, block, ban, mute, knobs("cut", True))


def commits(knobs: Knobs, steps: int) -> Commit:
    threshold, factor = knobs("threshold", 0.0), knobs("factor", 0.0)
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold={threshold} must lie in [0, 1]; 0 turns it off.")
    if factor < 0:
        raise ConfigError(f"factor={factor} must be 0 or more; 0 turns it off.")
    if threshold and factor:
        raise ConfigError(f"threshold={threshold} and factor={factor} exclude each other; set one.")
    quota = knobs.one_of("schedule", "dream" if knobs.family == "dream" else "even", QUOTAS)
    if threshold:
        return Threshold(threshold)
    return Factor(factor) if factor else TopK(steps, quota)


def proposal(knobs: Knobs, commit: Commit) -> Propose:
    # A threshold compares probabilities, on Dream too, never entropies.
    usual = "neg_entropy" if knobs.family == "dream" and isinstance(commit, TopK) else "confidence"
    score = knobs.one_of("score", usual, SCORES)
    temperature, proposable = knobs("temperature", 0.0), knobs("mask_proposable", False)
    if temperature < 0:
        raise ConfigError(f"temperature={temperature} must be 0 or more.")
    if knobs.family == "dream":
        top_p, top_k = knobs("top_p", 1.0), knobs("top_k", 0)
        if not 0 < top_p <= 1 or top_k < 0:
            raise ConfigError(f"top_p={top_p} must lie in (0, 1] and top_k={top_k} be 0 or more.")
        return Tempered(score, temperature, top_p, top_k, proposable)
    return Noised(score, temperature, proposable)
