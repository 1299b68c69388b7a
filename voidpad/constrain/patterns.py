"""Patterns: regular languages over text as small trees, and the parser that reads them from a regular expression.

The dialect of `parse` is that of Python's `re`, as `re.fullmatch` reads it, without what is not regular or depends on
the surroundings: look-around, back-references, atomic groups, possessive quantifiers, word boundaries and the flags
i, m and L are refused by name. `^` and `$` may stand at the beginning and at the end. `.` matches anything but a
line feed, unless the flag s is set.

`\\d`, `\\w` and `\\s` mean their ASCII characters, and `\\D`, `\\W` and `\\S` leave out the Unicode ones: text that is
written under a pattern matches it by Python's Unicode rules and by the ASCII rules of JSON Schema alike.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from voidpad.errors import ConfigError

LAST_CHARACTER = 0x10FFFF
_sre: Any = importlib.import_module("re._parser")  # Python's own parser; it has no public name


class ConstraintError(ConfigError):
    """A constraint that cannot be honoured. `keyword` names the part of the pattern or schema that is to blame."""

    def __init__(self, message: str, keyword: str = "") -> None:
        super().__init__(message)
        self.keyword = keyword

    def __reduce__(self) -> tuple[Any, ...]:
        return ConstraintError, (str(self), self.keyword)


Ranges = tuple[tuple[int, int], ...]  # code points, first and last of each range, in order


@dataclass(frozen=True, eq=False)
class Characters:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Sequenced:
    """One part after the other; without parts, the empty text."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class Alternatives:
    """One of several patterns; without options, no text at all."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class Repeated:
    """A pattern `least` to `most` times (None: any number of times)."""

    part: Pattern
    least: int
    most: int | None


@dataclass(frozen=True, eq=False)
class Listed:
    """Parts in a fixed order, each required or optional, with a separator between those that are there."""

    parts: tuple[tuple[Pattern, bool], ...]  # the part and whether it is required
    separator: Pattern


@dataclass(frozen=True, eq=False)
class Both:
    """Texts that match two patterns at once."""

    one: Pattern
    other: Pattern


Pattern = Characters | Sequenced | Alternatives | Repeated | Listed | Both


def literal(text: str) -> Pattern:
    """Exactly this text."""
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        raise ConstraintError(
            f"{text!a:.60}: holds half a surrogate pair, which no text can hold.", "surrogate"
        )
    return Sequenced(tuple(Characters(((ord(letter), ord(letter)),)) for letter in text))


def sequence(*parts: Pattern | str) -> Pattern:
    """One part after the other; strings stand for themselves."""
    return Sequenced(tuple(literal(part) if isinstance(part, str) else part for part in parts))


def one_of(*options: Pattern | str) -> Pattern:
    """One of these patterns; strings stand for themselves."""
    return Alternatives(tuple(literal(option) if isinstance(option, str) else option for option in options))


def optional(part: Pattern) -> Pattern:
    """This pattern or nothing."""
    return Repeated(part, 0, 1)


def separated(part: Pattern, least: int, most: int | None, separator: str = ", ") -> Pattern:
    """A pattern `least` to `most` times with a separator in between."""
    if most == 0:
        return literal("")
    further = Repeated(sequence(separator, part), max(least - 1, 0), None if most is None else most - 1)
    several = sequence(part, further)
    return several if least else optional(several)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, without overlaps."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Every character outside these ranges, which are in order."""
    edges = [-1, *(edge for pair in ranges for edge in pair), LAST_CHARACTER + 1]
    gaps = [(edges[i] + 1, edges[i + 1] - 1) for i in range(0, len(edges), 2)]
    return tuple((first, last) for first, last in gaps if first <= last)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """The characters in both sets."""
    return complement(union([*complement(one), *complement(other)]))


def parse(expression: str) -> Pattern:
    """The pattern of a regular expression in our dialect; what the dialect lacks is refused by name."""
    try:
        parsed = _sre.parse(expression)
        return _Reader(expression).group(list(parsed), parsed.state.flags, first=True, last=True)
    except re.error as error:
        raise ConstraintError(f"regex {expression!r:.60}: {error}.", "regex") from None
    except (RecursionError, OverflowError):
        raise ConstraintError(
            f"regex {expression!r:.60}: is nested too deeply or counts too far.", "regex"
        ) from None


_LACKING = {
    "assert": "look-around",
    "assert_not": "look-around",
    "groupref": "a back-reference",
    "groupref_exists": "a conditional group",
    "atomic_group": "an atomic group",
    "possessive_repeat": "a possessive quantifier",
    "at_boundary": "\\b",
    "at_non_boundary": "\\B",
}


@dataclass(frozen=True)
class _Reader:
    """Turns what Python's parser found into a pattern. `flags` are those of `re` where a group stands."""

    expression: str

    def group(self, items: Sequence[Any], flags: int, *, first: bool, last: bool) -> Pattern:
        """`first`, `last`: whether these items may touch the beginning and the end of the text, for ^ and $."""
        for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("L", re.LOCALE)):
            if flags & flag:
                raise self.refused(f"the flag {letter}", letter)
        parts: list[Pattern] = []
        for index, (kind, value) in enumerate(items):
            at_start = first and not parts
            at_end = last and all(str(op) == "AT" for op, _ in items[index + 1 :])
            part = self.item(str(kind).lower(), value, flags, at_start, at_end)
            if part is not None:
                parts.append(part)
        return parts[0] if len(parts) == 1 else Sequenced(tuple(parts))

    def item(self, kind: str, value: Any, flags: int, first: bool, last: bool) -> Pattern | None:
        """The pattern of one item; None for an anchor that holds anyway."""
        match kind:
            case "literal":
                return Characters(((value, value),))
            case "not_literal":
                return Characters(complement(((value, value),)))
            case "any":
                return Characters(((0, LAST_CHARACTER),) if flags & re.DOTALL else complement(((10, 10),)))
            case "in":
                return Characters(_character_set(value))
            case "branch":
                options = [self.group(list(one), flags, first=first, last=last) for one in value[1]]
                return Alternatives(tuple(options))
            case "subpattern":
                _, added, removed, items = value
                return self.group(list(items), (flags | added) & ~removed, first=first, last=last)
            case "max_repeat" | "min_repeat":
                least, most, items = value
                part = self.group(list(items), flags, first=False, last=False)
                return Repeated(part, int(least), None if most == _sre.MAXREPEAT else int(most))
            case "at":
                anchor = str(value).lower()
                if (first and anchor.startswith("at_beginning")) or (last and anchor.startswith("at_end")):
                    return None
                raise self.refused(_LACKING.get(anchor, "^ or $ inside the pattern"))
        raise self.refused(_LACKING.get(kind, kind))

    def refused(self, what: str, keyword: str = "") -> ConstraintError:
        return ConstraintError(f"regex {self.expression!r:.60}: {what} is not supported.", keyword or what)


def _character_set(items: Sequence[Any]) -> Ranges:
    """The characters of a bracket expression, or of a category that stands alone."""
    negated = str(items[0][0]) == "NEGATE"
    ranges: list[tuple[int, int]] = []
    for kind, value in items[1:] if negated else items:
        if str(kind) == "LITERAL":
            ranges.append((value, value))
        elif str(kind) == "RANGE":
            ranges.append(value)
        else:
            ranges += _category(str(value).lower(), generous=negated)
    found = union(ranges)
    return complement(found) if negated else found


_CATEGORIES = {  # the ASCII characters, and an expression for the Unicode ones
    "category_digit": (((48, 57),), r"\d+"),
    "category_word": (((48, 57), (65, 90), (95, 95), (97, 122)), r"\w+"),
    "category_space": (((9, 13), (32, 32)), r"\s+"),
}


@cache
def _category(name: str, *, generous: bool) -> Ranges:
    """A category's characters: those of both the ASCII and the Unicode rules, or, if generous, those of either."""
    if "_not_" in name:
        return complement(_category(name.replace("_not_", "_"), generous=not generous))
    ascii_ranges, expression = _CATEGORIES[name]
    if not generous:
        return ascii_ranges
    everything = "".join(map(chr, range(LAST_CHARACTER + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(expression, everything))


_UTF8 = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST_CHARACTER))


def utf8_ranges(ranges: Ranges) -> Iterator[tuple[tuple[int, int], ...]]:
    """The UTF-8 spellings of a set of characters: sequences of byte ranges. Surrogates have no spelling."""
    for first, last in ranges:
        for low, high in _UTF8:
            if max(first, low) <= min(last, high):
                yield from _split(max(first, low), min(last, high))


def _split(first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ranges of characters with spellings of one length, cut where a continuation byte does not run through."""
    for digit in range(1, len(chr(first).encode())):
        below = (1 << (6 * digit)) - 1
        if first & ~below == last & ~below:
            continue
        if first & below:
            yield from _split(first, first | below)
            yield from _split((first | below) + 1, last)
            return
        if last & below != below:
            yield from _split(first, (last & ~below) - 1)
            yield from _split(last & ~below, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))
