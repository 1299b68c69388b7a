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
_DEEPEST = 100  # groups inside groups
_DIGIT, _WORD, _SPACE = "category_digit", "category_word", "category_space"


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
    """A pattern `least` to `most` times (None: any number of times), with a separator between them if there is one."""

    part: Pattern
    least: int
    most: int | None
    separator: Pattern | None = None


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
EMPTY = Sequenced(())


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
    except re.error as error:
        raise ConstraintError(f"regex {_short(expression)}: {error}.", "regex") from None
    except (RecursionError, OverflowError):
        raise ConstraintError(
            f"regex {_short(expression)}: is nested too deeply or counts too far.", "regex"
        ) from None
    flags = parsed.state.flags
    _refuse_flags(expression, flags)
    return _Reader(expression).sequence(list(parsed), flags & re.DOTALL, first=True, last=True, depth=0)


def _refuse_flags(expression: str, flags: int) -> None:
    for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("L", re.LOCALE)):
        if flags & flag:
            raise ConstraintError(f"regex {_short(expression)}: the flag {letter} is not supported.", letter)


@dataclass(frozen=True)
class _Reader:
    """Turns what Python's parser found into a pattern."""

    expression: str

    def sequence(self, items: Sequence[Any], dotall: int, *, first: bool, last: bool, depth: int) -> Pattern:
        """`first`, `last`: whether these items may touch the beginning and the end of the text, for ^ and $."""
        if depth > _DEEPEST:
            raise self.refused("groups nested so deeply")
        parts: list[Pattern] = []
        for index, item in enumerate(items):
            at_start = first and not parts
            at_end = last and all(str(op) == "AT" for op, _ in items[index + 1 :])
            part = self.one(item, dotall, at_start, at_end, depth)
            if part is not None:
                parts.append(part)
        return parts[0] if len(parts) == 1 else Sequenced(tuple(parts))

    def one(self, item: Any, dotall: int, first: bool, last: bool, depth: int) -> Pattern | None:
        """The pattern of one item; None for an anchor that holds anyway."""
        kind, value = str(item[0]).lower(), item[1]
        if kind == "literal":
            return Characters(((value, value),))
        if kind == "not_literal":
            return Characters(complement(((value, value),)))
        if kind == "any":
            return Characters(((0, LAST_CHARACTER),) if dotall else complement(((10, 10),)))
        if kind == "in":
            return Characters(_character_set(value))
        if kind == "branch":
            branches = [
                self.sequence(list(branch), dotall, first=first, last=last, depth=depth + 1)
                for branch in value[1]
            ]
            return Alternatives(tuple(branches))
        if kind == "subpattern":
            _, added, removed, items = value
            _refuse_flags(self.expression, added)
            dotall = (dotall | (added & re.DOTALL)) & ~removed
            return self.sequence(list(items), dotall, first=first, last=last, depth=depth + 1)
        if kind in ("max_repeat", "min_repeat"):
            least, most, items = value
            part = self.sequence(list(items), dotall, first=False, last=False, depth=depth + 1)
            return Repeated(part, int(least), None if most == _sre.MAXREPEAT else int(most))
        if kind == "at":
            anchor = str(value).lower()
            if (anchor in ("at_beginning", "at_beginning_string") and first) or (
                anchor in ("at_end", "at_end_string") and last
            ):
                return None
            names = {"at_boundary": "\\b", "at_non_boundary": "\\B"}
            raise self.refused(names.get(anchor, "^ or $ inside the pattern"))
        names = {
            "assert": "look-around",
            "assert_not": "look-around",
            "groupref": "a back-reference",
            "groupref_exists": "a conditional group",
            "atomic_group": "an atomic group",
            "possessive_repeat": "a possessive quantifier",
        }
        raise self.refused(names.get(kind, kind))

    def refused(self, what: str) -> ConstraintError:
        return ConstraintError(f"regex {_short(self.expression)}: {what} is not supported.", what)


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


def _category(name: str, *, generous: bool) -> Ranges:
    """A category's characters: those of both the ASCII and the Unicode rules, or, if generous, those of either."""
    if "_not_" in name:
        return complement(_category(name.replace("_not_", "_"), generous=not generous))
    return _unicode_category(name) if generous else _ASCII[name]


_ASCII = {
    _DIGIT: ((48, 57),),
    _WORD: ((48, 57), (65, 90), (95, 95), (97, 122)),
    _SPACE: ((9, 13), (32, 32)),
}


@cache
def _unicode_category(name: str) -> Ranges:
    letter = {_DIGIT: r"\d+", _WORD: r"\w+", _SPACE: r"\s+"}[name]
    everything = "".join(map(chr, range(LAST_CHARACTER + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(letter, everything))


def _short(expression: str) -> str:
    return repr(expression if len(expression) <= 60 else f"{expression[:57]}...")


def utf8_ranges(ranges: Ranges) -> Iterator[tuple[tuple[int, int], ...]]:
    """The UTF-8 spellings of a set of characters: sequences of byte ranges. Surrogates have no spelling."""
    for first, last in ranges:
        for low, high in (
            (0, 0x7F),
            (0x80, 0x7FF),
            (0x800, 0xD7FF),
            (0xE000, 0xFFFF),
            (0x10000, LAST_CHARACTER),
        ):
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
