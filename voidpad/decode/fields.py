"""Settings of rules: each field of a rule carries its default, its range or choices, and its help text.

A rule is a frozen dataclass that inherits from `DecodingRule`; its fields are declared with `setting`. The range is
checked when the rule is made. Presets, the command line, `voidpad plans` and forms read the same declarations
as `PlanField`s, so a default or a range is written down once.
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from voidpad.errors import ConfigError

Names = tuple[str | int, ...]  # role names or token ids, such as ("void", 126081)
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", tuple: "names"}
_KEY = "voidpad.setting"


@dataclass(frozen=True)
class Range:
    """Numbers a setting may have: at_least <= value <= at_most, or above < value <= at_most."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        """The end of the sentence "the value must ..."."""
        if self.at_most is None:
            return f"be more than {self.above}" if self.at_least is None else f"be at least {self.at_least}"
        low = f"({self.above}" if self.at_least is None else f"[{self.at_least}"
        return f"lie in {low}, {self.at_most}]"


@dataclass(frozen=True)
class PlanField:
    """One adjustable value of a rule or of a preset.

    `type` is a word: "integer", "number", "boolean", "string", or "names" for role names and token ids. `choices`
    maps each name a user may type to the value it stands for; it is empty where any value in `bounds` will do.
    `authors` is the value in the code published by a method's authors, where it differs from the default.
    """

    name: str
    type: str
    default: Any
    bounds: Range | None
    choices: Mapping[str, Any]
    help: str
    authors: Any = None

    def check(self, value: Any) -> None:
        """Refuse a value of the wrong type, out of range, or not among the choices.

        Where the choices are functions or objects, one of the user's own of that kind is accepted too.
        """
        if self.choices:
            usual = next(iter(self.choices.values()))
            own = not isinstance(value, str) and (
                callable(value) if callable(usual) else type(value) is type(usual)
            )
            if not own and value not in self.choices.values():
                raise self._unknown(value)
            return
        if self.type == "names":
            if not isinstance(value, tuple) or not all(isinstance(one, str | int) for one in value):
                raise ConfigError(f"{self.name}={value!r} must be a tuple of role names and token ids.")
            return
        if TYPES.get(type(value)) != self.type and not (self.type == "number" and type(value) is int):
            raise ConfigError(
                f"{self.name}={value!r} must be of type {self.type}; the default is {self.default!r}."
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{self.name}={value} is no number; the default is {self.default!r}.")
        if self.bounds is not None and value not in self.bounds:
            raise ConfigError(f"{self.name}={value} must {self.bounds}.")

    def resolve(self, given: Any) -> Any:
        """The value of the rule's field for what a user typed; refuses what `check` refuses."""
        if self.choices:
            if not isinstance(given, str) or given not in self.choices:
                raise self._unknown(given)
            return self.choices[given]
        value = _parsed_names(given) if self.type == "names" else given
        value = float(value) if self.type == "number" and type(value) is int else value
        self.check(value)
        return value

    def plain(self) -> dict[str, Any]:
        """The field as JSON values, for a form or a server: the choices by name, absent bounds as null."""
        bounds = self.bounds or Range()
        limits = {"at_least": bounds.at_least, "above": bounds.above, "at_most": bounds.at_most}
        default = list(self.default) if isinstance(self.default, tuple) else self.default
        shown = {"name": self.name, "type": self.type, "default": default, "choices": list(self.choices)}
        return {**shown, **limits, "help": self.help}

    def _unknown(self, value: Any) -> ConfigError:
        return ConfigError(f"{self.name}={value!r} is unknown; use one of {', '.join(self.choices)}.")


def _parsed_names(given: Any) -> Names:
    """ "void, 12" or ["void", 12] as ("void", 12)."""
    parts = given.split(",") if isinstance(given, str) else given
    stripped = [part.strip() if isinstance(part, str) else part for part in parts]
    return tuple(
        int(part) if isinstance(part, str) and _is_id(part) else part for part in stripped if part != ""
    )


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def setting(
    default: Any,
    *,
    help: str,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    choices: Mapping[str, Any] | tuple[str, ...] = (),
    authors: Any = None,
) -> Any:
    """A dataclass field with its default, its range or choices, and one line of help.

    `choices` is a tuple of words, or a mapping from the word a user types to a function or object; then
    `default` is the function or object, and a function that is not in the mapping is accepted too. `authors` is
    the word or number that the preset suffix `@authors` sets.
    """
    named = choices if isinstance(choices, Mapping) else {word: word for word in choices}
    shown = next((name for name, value in named.items() if value == default), default)
    bounded = (at_least, at_most, above) != (None, None, None)
    bounds = Range(at_least, at_most, above) if bounded else None
    declared = PlanField("", TYPES[type(shown)], shown, bounds, named, help, authors)
    return field(default=default, metadata={_KEY: declared})


def settings_of(rule: type) -> list[PlanField]:
    """The fields of a rule class that were declared with `setting`, in the order of the class."""
    return [_named(one) for one in fields(rule) if _KEY in one.metadata]


def _named(one: Field[Any]) -> PlanField:
    declared = one.metadata[_KEY]
    return PlanField(**{**{f.name: getattr(declared, f.name) for f in fields(PlanField)}, "name": one.name})


class DecodingRule:
    """Base of rules with settings: a value outside its declared range is refused when the rule is made."""

    def __post_init__(self) -> None:
        for one in settings_of(type(self)):
            one.check(getattr(self, one.name))


def declared(rule: Callable[..., Any] | object, name: str, otherwise: Any) -> Any:
    """What a rule says about itself, or `otherwise` for a rule (such as a plain function) that does not say."""
    return getattr(rule, name, otherwise)


def check_rule(name: str, rule: Any) -> None:
    """Refuse a rule that cannot be called, hashed (plans are dict keys) or pickled (plans go to other processes)."""
    if name != "length" and not callable(rule):
        raise ConfigError(f"{name}={rule!r} is no rule; give a function or an object with __call__.")
    try:
        hash(rule)
    except TypeError:
        raise ConfigError(
            f"{name}={name_of(rule)} is not hashable; make its class a frozen dataclass."
        ) from None
    try:
        pickle.dumps(rule)
    except Exception:
        raise ConfigError(
            f"{name}={name_of(rule)} cannot be pickled; define it at the top level of a module, without lambdas."
        ) from None


def name_of(rule: Any) -> str:
    """The name of a rule: that of a function, or of an object's class; with its module if it is not voidpad's."""
    named = rule if isinstance(rule, type) or hasattr(rule, "__qualname__") else type(rule)
    ours = named.__module__.startswith("voidpad.")
    return named.__qualname__ if ours else f"{named.__module__}:{named.__qualname__}"


def plain(value: Any) -> Any:
    """A rule, a setting or a plan as JSON values: rules by name with their settings."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        return {"rule": name_of(value), **values}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return name_of(value) if callable(value) else str(value)


def in_place_of(
    unknown: Sequence[str], known: Iterable[str], *, plans: Mapping[str, set[str]], sampling: set[str]
) -> str:
    """What to use for fields that a plan does not have, as the middle of a sentence; "" if nothing is near.

    `plans` has the fields of every plan of this model, and `sampling` those of every family's sampler.
    """
    having = [name for name, others in plans.items() if others.issuperset(unknown)]
    if having:
        shown = ", ".join(having[:3]) + (" and others" if len(having) > 3 else "")
        return f"; plans that have it: {shown}" if len(unknown) == 1 else f"; plans that have them: {shown}"
    if sampling.issuperset(unknown):
        samples = "temperature" in known
        return "; this model samples by temperature alone" if samples else "; it does not sample"
    near = get_close_matches(unknown[0], list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


RENAMED = {"scheduler": "edit_growth"}  # field names that still work, with a warning


def today(given: dict[str, Any]) -> dict[str, Any]:
    """The given fields with deprecated names replaced by the names of today."""
    for old, new in RENAMED.items():
        if old in given:
            warnings.warn(f"the plan field {old} is now called {new}.", FutureWarning, stacklevel=4)
            given[new] = given.pop(old)
    return given
