"""Rules that a field of a preset switches on: a commit rule in place of the schedule, an adjust rule, a block rule.

Such a rule names in `switch` one of its settings. In a preset this field is 0, which stands for "not this rule"; any
other value selects the rule. Its further settings are fields of the preset, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from voidpad.decode.adjust import Credit, EosPenalty
from voidpad.decode.block_ends import DelimitedBlocks
from voidpad.decode.commit import EntropyBound, Factor, Hierarchical, LocalLeap, Threshold, TopK
from voidpad.decode.fields import PlanField, settings_of
from voidpad.errors import ConfigError

_COMMITS = (Threshold, Factor, EntropyBound, LocalLeap, Hierarchical)
_ADJUSTS = (EosPenalty, Credit)
_BLOCKS = (DelimitedBlocks,)
# Fields that only approximations have: without them, a plan decodes exactly.
APPROXIMATE_FIELDS = (
    *dict.fromkeys(one.name for rule in (*_COMMITS, Credit) for one in settings_of(rule)),
    "trim",
)


def has_commit_rule(known: Sequence[PlanField]) -> bool:
    """Whether the defaults of these fields select a commit rule in place of the schedule."""
    switches = {rule.switch for rule in _COMMITS}
    return any(one.name in switches and one.default for one in known)


def switched_fields(on: Sequence[type[Any]]) -> list[PlanField]:
    """The fields of all these rules and of the schedule, once each; only the rules `on` are selected by default."""
    found: dict[str, PlanField] = {}
    for rule in (*_COMMITS, TopK, *_ADJUSTS, *_BLOCKS):
        for one in settings_of(rule):
            if one.name == getattr(rule, "switch", None):
                default = one.default if rule in on else 0.0
                one = replace(one, default=default, help=f"{one.help} (0 is off)")
            found.setdefault(one.name, one)
    return list(found.values())


def commit_rule(values: Mapping[str, Any], *, steps: int | None) -> Any:
    """The commit rule that the values of the fields select; the schedule, over so many passes a block, by default."""
    chosen: list[Any] = [rule for rule in _COMMITS if values[rule.switch]]
    if any(_builds_on_threshold(rule) for rule in chosen):
        chosen = [rule for rule in chosen if rule is not Threshold]
    _one_of(chosen, values)
    _nothing_unused(_COMMITS, chosen, values)
    if not chosen:
        return made(TopK, {**values, "steps": steps})
    [rule] = chosen
    if values["position_decay"]:
        given = f"{rule.switch}={values[rule.switch]}"
        raise ConfigError(f"position_decay ranks the slots of a schedule; drop it or {given}.")
    if _builds_on_threshold(rule):
        _check_threshold(rule, values)
    return made(rule, values)


def adjust_rule(values: Mapping[str, Any]) -> Any:
    """The adjust rule that the values of the fields select, or None."""
    chosen: list[Any] = [rule for rule in _ADJUSTS if values[rule.switch]]
    _one_of(chosen, values)
    _nothing_unused(_ADJUSTS, chosen, values)
    if Credit in chosen:
        _check_threshold(Credit, values)
    return made(chosen[0], values) if chosen else None


def block_rule(values: Mapping[str, Any]) -> DelimitedBlocks | None:
    """The block rule that the values of the fields select, or None."""
    chosen = [rule for rule in _BLOCKS if values[rule.switch]]
    _nothing_unused(_BLOCKS, chosen, values)
    return made(chosen[0], values) if chosen else None


def made(rule: type[Any], values: Mapping[str, Any]) -> Any:
    """A rule with the values of its fields."""
    return rule(**{one.name: values[one.name] for one in fields(rule) if one.name in values})


def _one_of(chosen: Sequence[Any], values: Mapping[str, Any]) -> None:
    if len(chosen) > 1:
        given = " and ".join(f"{rule.switch}={values[rule.switch]}" for rule in chosen)
        raise ConfigError(f"{given} exclude each other; set one.")


def _nothing_unused(rules: Sequence[Any], chosen: Sequence[Any], values: Mapping[str, Any]) -> None:
    """Refuse a setting of a rule that is not selected: it would have no effect."""
    for rule in rules:
        for one in settings_of(rule):
            idle = rule not in chosen and one.name != rule.switch and one.name != Threshold.switch
            if idle and values[one.name] not in (one.resolve(one.default), one.authors):
                raise ConfigError(f"{one.name} has no effect without {rule.switch}; set {rule.switch} too.")


def _check_threshold(rule: Any, values: Mapping[str, Any]) -> None:
    """Refuse a rule that adds to threshold decoding where no threshold is set: none is chosen silently."""
    if not values[Threshold.switch]:
        given = f"{rule.switch}={values[rule.switch]}"
        raise ConfigError(f"{given} is made for threshold decoding; set threshold, as 0.9.")


def _builds_on_threshold(rule: type[Any]) -> bool:
    return rule is not Threshold and any(one.name == Threshold.switch for one in settings_of(rule))
