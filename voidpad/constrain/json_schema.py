"""JSON schemas as patterns: the JSON texts of the values that a schema allows.

Each value is spelled in one way: `, ` and `: ` between parts, as Python's `json.dumps` has it; properties in the order
of the schema; no escape where a character can stand for itself; whole numbers without a fraction. Where a schema
allows more than we write, we write less, so that every text is valid: properties that the schema does not name are
left out, a `pattern` must match the whole string, and free numbers have at most 15 digits on each side of the point.

Keywords that restrict a value and are not listed here are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from voidpad.constrain.patterns import (
    EMPTY,
    Alternatives,
    Both,
    Characters,
    ConstraintError,
    Listed,
    Pattern,
    Ranges,
    Repeated,
    Sequenced,
    complement,
    intersection,
    literal,
    one_of,
    optional,
    parse,
    sequence,
)

DEFAULT_DEPTH = 3  # of objects and arrays in a value about which the schema says nothing
_DEEPEST = 60  # schemas inside schemas
_DIGITS = 15
_FRACTION = 6  # digits after the point in a number with bounds: few enough that a float keeps the order
_LARGEST_BOUND = 10**9
_ANNOTATIONS = frozenset(
    (
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    )
)
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_OF_TYPE: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set(),
    "null": set(),
}
_KNOWN = _ANNOTATIONS.union(*_OF_TYPE.values(), {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"})
_CONTROL: Ranges = ((0, 31),)
_PLAIN: Ranges = complement(((0, 31), (34, 34), (92, 92)))  # characters that stand for themselves in a string
_ESCAPED = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}

_YEAR = "[12][0-9]{3}"
_LEAP_YEAR = "(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR_MINUTE})"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
FORMATS = {
    "date": _DATE,  # of the years 1000 to 2999
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P(?:[0-9]{1,4}D(?:T[0-9]{1,2}H(?:[0-9]{1,2}M)?)?|T[0-9]{1,4}(?:H(?:[0-9]{1,2}M)?|M|S)"
    "|[0-9]{1,3}[YMW])",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})*\.[a-z]{{2,12}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,5}}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "ipv6": "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}",
    "uri": rf"https?://{_LABEL}(?:\.{_LABEL})*(?::[1-9][0-9]{{0,3}})?(?:/[A-Za-z0-9._~%-]*)*"
    r"(?:\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?",
}  # fmt: skip


def schema_pattern(schema: Any, *, depth: int = DEFAULT_DEPTH) -> Pattern:
    """The pattern of a schema's JSON texts; `depth` bounds values about which the schema says nothing."""
    return _Translator(schema, depth).value(schema, "#", ())


def object_pattern(depth: int = DEFAULT_DEPTH) -> Pattern:
    """Any JSON object in which objects and arrays are nested at most `depth` deep, itself included."""
    if not 1 <= depth <= 5:
        raise ConstraintError(f"json_object: depth {depth} is outside 1 to 5.", "depth")
    return _any_object(_any_value(depth - 1))


def spelled(value: Any) -> str:
    """A JSON value in the one spelling that we write."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ConstraintError(f"{value!r:.60}: is no JSON value.", "const") from None


class _Translator:
    """Walks a schema. `path` says where in the schema we are; `references` are the $refs that led here."""

    def __init__(self, root: Any, depth: int) -> None:
        self.root = root
        self.depth = depth
        self.definitions: dict[str, Pattern] = {}

    def value(self, schema: Any, path: str, references: tuple[str, ...]) -> Pattern:
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise refused(path, "schema", f"is {json_type(schema)}, not an object")
        if path.count("/") > 2 * _DEEPEST:
            raise refused(path, "schema", "is nested too deeply")
        unknown = [keyword for keyword in schema if keyword not in _KNOWN]
        if unknown:
            raise refused(path, str(unknown[0]), "is not supported")
        rest = {keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATIONS}
        for keyword, read in self._whole_values().items():
            if keyword in rest:
                return read(rest.pop(keyword), rest, path, references)
        return self._typed(rest, path, references)

    def _whole_values(self) -> dict[str, Callable[..., Pattern]]:
        """Keywords that say all there is to say about a value, in the order in which they are looked for."""
        return {
            "$ref": self._reference,
            "const": lambda value, rest, path, _: self._values("const", [value], rest, path),
            "enum": lambda values, rest, path, _: self._values("enum", values, rest, path),
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "allOf": self._all_of,
        }

    def _reference(self, target: Any, rest: Any, path: str, references: tuple[str, ...]) -> Pattern:
        _alone("$ref", rest, path)
        if not isinstance(target, str) or not target.startswith("#"):
            raise refused(path, "$ref", f"{target!r:.60} leads out of the schema, which is not supported")
        if target in references or target == "#":
            raise refused(path, "$ref", f"{target!r:.60} is recursive, which is not supported")
        if target not in self.definitions:
            found = self.root
            for step in target[1:].split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                if not isinstance(found, Mapping) or step not in found:
                    raise refused(path, "$ref", f"{target!r:.60} names nothing in the schema")
                found = found[step]
            if len(references) > _DEEPEST:
                raise refused(path, "$ref", "is nested too deeply")
            self.definitions[target] = self.value(found, target, (*references, target))
        return self.definitions[target]

    def _values(self, keyword: str, values: Any, rest: dict[str, Any], path: str) -> Pattern:
        allowed = rest.pop("type", _TYPES)
        allowed = [allowed] if isinstance(allowed, str) else allowed
        _alone(keyword, rest, path)
        if not isinstance(values, list) or not values:
            raise refused(path, keyword, "is no list of values")
        fitting = [value for value in values if _is_a(value, allowed)]
        if not fitting:
            raise refused(path, keyword, f"has no value of type {', '.join(map(str, allowed))}")
        return one_of(*dict.fromkeys(spelled(value) for value in fitting))

    def _any_of(self, options: Any, rest: Any, path: str, references: tuple[str, ...]) -> Pattern:
        _alone("anyOf", rest, path)
        return Alternatives(tuple(self._options("anyOf", options, path, references)))

    def _one_of(self, options: Any, rest: Any, path: str, references: tuple[str, ...]) -> Pattern:
        """Like anyOf, where no value can fit two options: their types differ, or a required constant does."""
        _alone("oneOf", rest, path)
        patterns = self._options("oneOf", options, path, references)
        facts = [self._facts(option) for option in options]
        for index, one in enumerate(facts):
            for other in facts[index + 1 :]:
                apart = not (one[0] & other[0]) or any(
                    not (set(values) & set(other[1][name]))
                    for name, values in one[1].items()
                    if name in other[1]
                )
                if not apart:
                    raise refused(path, "oneOf", "has options that one value could fit at once; use anyOf")
        return Alternatives(tuple(patterns))

    def _facts(self, schema: Any) -> tuple[set[str], dict[str, list[str]]]:
        """The types of a schema's values, and the required properties that can have few values: these, spelled."""
        for _ in range(_DEEPEST):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            found = self.root
            for step in str(schema["$ref"])[1:].split("/")[1:]:
                found = found[step.replace("~1", "/").replace("~0", "~")]
            schema = found
        if not isinstance(schema, Mapping):
            return set(_TYPES), {}
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        types = (
            [json_type(value) for value in values] if values is not None else schema.get("type", list(_TYPES))
        )
        named = {types} if isinstance(types, str) else set(types)
        if "number" in named:
            named.add("integer")
        fixed: dict[str, list[str]] = {}
        for name, inner in schema.get("properties", {}).items():
            if name in schema.get("required", ()) and isinstance(inner, Mapping):
                few = inner.get("enum", [inner["const"]] if "const" in inner else None)
                if few is not None:
                    fixed[name] = [spelled(value) for value in few]
        return named, fixed if named == {"object"} else {}

    def _all_of(self, options: Any, rest: Any, path: str, references: tuple[str, ...]) -> Pattern:
        _alone("allOf", rest, path)
        patterns = self._options("allOf", options, path, references)
        if len(patterns) != 1:
            raise refused(path, "allOf", "with several schemas is not supported; write them as one")
        return patterns[0]

    def _options(self, keyword: str, options: Any, path: str, references: tuple[str, ...]) -> list[Pattern]:
        if not isinstance(options, list) or not options:
            raise refused(path, keyword, "is no list of schemas")
        return [self.value(one, f"{path}/{keyword}/{index}", references) for index, one in enumerate(options)]

    def _typed(self, rest: dict[str, Any], path: str, references: tuple[str, ...]) -> Pattern:
        types = rest.pop("type", None)
        if types is None:
            owners = [name for name in ("object", "array", "string") if rest.keys() & _OF_TYPE[name]]
            if rest and (len(owners) != 1 or not rest.keys() <= _OF_TYPE[owners[0]]):
                raise refused(path, next(iter(rest)), "needs a type beside it")
            if not rest:
                return _any_value(self.depth - 1)
            types = owners[0]
        names = [types] if isinstance(types, str) else types
        if not isinstance(names, list) or not names or any(name not in _TYPES for name in names):
            raise refused(path, "type", f"{types!r:.60} is unknown; use some of {', '.join(_TYPES)}")
        for keyword in rest:
            if not any(keyword in _OF_TYPE[name] for name in names):
                raise refused(path, keyword, f"does not go with type {', '.join(names)}")
        readers: dict[str, Callable[[dict[str, Any], str, tuple[str, ...]], Pattern]] = {
            "object": self._object,
            "array": self._array,
            "string": lambda fields, place, _: _string(fields, place),
            "integer": lambda fields, place, _: _number(fields, place, whole=True),
            "number": lambda fields, place, _: _number(fields, place, whole=False),
            "boolean": lambda *_: one_of("true", "false"),
            "null": lambda *_: literal("null"),
        }
        options = []
        for name in names:
            fields = {keyword: value for keyword, value in rest.items() if keyword in _OF_TYPE[name]}
            options.append(readers[name](fields, path, references))
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _object(self, fields: dict[str, Any], path: str, references: tuple[str, ...]) -> Pattern:
        properties, required = fields.get("properties"), fields.get("required", [])
        further = fields.get("additionalProperties", True)
        if properties is not None and not isinstance(properties, Mapping):
            raise refused(path, "properties", "is no object of schemas")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refused(path, "required", "is no list of names")
        if not isinstance(further, bool | Mapping):
            raise refused(path, "additionalProperties", "is neither a schema nor true nor false")
        missing = [name for name in required if name not in (properties or {})]
        if missing:
            raise refused(path, "required", f"names {missing[0]!r:.60}, which properties does not describe")
        least, most = (_count(fields, keyword, path) for keyword in ("minProperties", "maxProperties"))
        if properties:
            if least is not None and least > len(required):
                raise refused(
                    path, "minProperties", "above the number of required properties is not supported"
                )
            if most is not None and most < len(properties):
                raise refused(path, "maxProperties", "below the number of properties is not supported")
            members = tuple(
                (
                    sequence(
                        f"{spelled(name)}: ", self.value(inner, f"{path}/properties/{name}", references)
                    ),
                    name in required,
                )
                for name, inner in properties.items()
            )
            return sequence("{", Listed(members, literal(", ")), "}")
        if further is False or properties is not None:
            return literal("{}")
        # A name could come twice, so a second member may not be counted on.
        if least is not None and least > 1:
            raise refused(path, "minProperties", "above 1 needs properties beside it")
        inner = (
            self.value(further, f"{path}/additionalProperties", references)
            if isinstance(further, Mapping)
            else _any_value(max(self.depth - 2, 0))
        )
        member = sequence(_any_string(), ": ", inner)
        return sequence("{", Repeated(member, least or 0, most, literal(", ")), "}")

    def _array(self, fields: dict[str, Any], path: str, references: tuple[str, ...]) -> Pattern:
        if fields.get("uniqueItems"):
            raise refused(path, "uniqueItems", "is not supported")
        least, most = _count(fields, "minItems", path) or 0, _count(fields, "maxItems", path)
        first = fields.get("prefixItems", [])
        if not isinstance(first, list):
            raise refused(path, "prefixItems", "is no list of schemas")
        heads = [
            self.value(one, f"{path}/prefixItems/{index}", references) for index, one in enumerate(first)
        ]
        items = fields.get("items", True)
        if items is False:
            most = len(heads) if most is None else min(most, len(heads))
        if most is not None and least > most:
            raise refused(path, "minItems", f"{least} is more than the {most} items that the array may have")
        if not heads:
            if most == 0:
                return literal("[]")
            inner = (
                _any_value(max(self.depth - 2, 0))
                if items is True
                else self.value(items, f"{path}/items", references)
            )
            return sequence("[", Repeated(inner, least, most, literal(", ")), "]")
        if most is None or most > len(heads):
            if "items" in fields or least > len(heads):
                raise refused(path, "items", "beside prefixItems is not supported, unless it is false")
            most = len(heads)
        tail: Pattern = EMPTY
        for index in range(most - 1, -1, -1):
            head = sequence(", ", heads[index], tail) if index else sequence(heads[0], tail)
            tail = head if index < least else optional(head)
        return sequence("[", tail, "]")


def refused(path: str, keyword: str, why: str) -> ConstraintError:
    """The refusal of one keyword, with its place in the schema."""
    return ConstraintError(f"json_schema: {keyword} {why} (at {path[:200]}).", keyword)


def json_type(value: Any) -> str:
    """The JSON Schema type of a value, integer before number."""
    if isinstance(value, bool):
        return "boolean"
    names = {
        dict: "object",
        list: "array",
        str: "string",
        int: "integer",
        float: "number",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


def _is_a(value: Any, types: Sequence[str]) -> bool:
    kind = json_type(value)
    return (
        kind in types
        or (kind == "integer" and "number" in types)
        or (kind == "number" and "integer" in types and float(value).is_integer())
    )


def _alone(keyword: str, rest: Mapping[str, Any], path: str) -> None:
    """Refuse keywords beside one that says everything. A type beside it says nothing more."""
    beside = [name for name in rest if name != "type"]
    if beside:
        raise refused(path, beside[0], f"beside {keyword} is not supported")


def _count(fields: Mapping[str, Any], keyword: str, path: str) -> int | None:
    value = fields.get(keyword)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refused(path, keyword, f"{value!r:.60} is no count")
    return value


# Strings


def _any_string() -> Pattern:
    return sequence('"', Repeated(_letter(), 0, None), '"')


def _letter() -> Pattern:
    """One character of a free string, spelled in JSON. Control characters without a short escape are left out."""
    return Alternatives((Characters(_PLAIN), sequence("\\", Characters(_points("".join(_ESCAPED.values()))))))


def _points(letters: str) -> Ranges:
    return tuple((ord(letter), ord(letter)) for letter in sorted(letters))


def _in_json(pattern: Pattern, known: dict[int, Pattern] | None = None) -> Pattern:
    """A pattern of texts as the pattern of their spellings inside a JSON string."""
    known = {} if known is None else known
    if id(pattern) in known:
        return known[id(pattern)]
    made: Pattern
    match pattern:
        case Characters():
            special = [
                point for point in (*range(32), 34, 92) if intersection(pattern.ranges, ((point, point),))
            ]
            escapes = [f"\\{_ESCAPED[p]}" if p in _ESCAPED else f"\\u{p:04x}" for p in special]
            plain = intersection(pattern.ranges, _PLAIN)
            made = one_of(*([Characters(plain)] if plain else []), *escapes)
        case Sequenced():
            made = Sequenced(tuple(_in_json(part, known) for part in pattern.parts))
        case Alternatives():
            made = Alternatives(tuple(_in_json(option, known) for option in pattern.options))
        case Repeated():
            made = Repeated(_in_json(pattern.part, known), pattern.least, pattern.most)
        case _:
            raise TypeError(pattern)
    known[id(pattern)] = made
    return made


def _string(fields: dict[str, Any], path: str) -> Pattern:
    least, most = _count(fields, "minLength", path), _count(fields, "maxLength", path)
    if most is not None and (least or 0) > most:
        raise refused(path, "minLength", f"{least} is more than maxLength {most}")
    contents: list[Pattern] = []
    if "format" in fields:
        expression = FORMATS.get(fields["format"]) if isinstance(fields["format"], str) else None
        if expression is None:
            raise refused(
                path, "format", f"{fields['format']!r:.60} is unknown; use one of {', '.join(FORMATS)}"
            )
        contents.append(parse(expression))
    if "pattern" in fields:
        if not isinstance(fields["pattern"], str):
            raise refused(path, "pattern", "is no text")
        try:
            contents.append(_in_json(parse(fields["pattern"])))
        except ConstraintError as error:
            raise refused(path, "pattern", str(error).removesuffix(".")) from None
    if least is not None or most is not None or not contents:
        any_letter = _in_json(Characters(((0, 0x10FFFF),))) if contents else _letter()
        contents.append(Repeated(any_letter, least or 0, most))
    content = contents[0]
    for other in contents[1:]:
        content = Both(content, other)
    return sequence('"', content, '"')


# Numbers


def _number(fields: dict[str, Any], path: str, *, whole: bool) -> Pattern:
    """Numbers within bounds. Those without any have at most 15 digits before and after the point."""
    low, low_open = _bound(fields, "minimum", "exclusiveMinimum", path, max)
    high, high_open = _bound(fields, "maximum", "exclusiveMaximum", path, min)
    if whole:
        limit = 10**_DIGITS - 1
        first = -max(limit, -int(high or 0)) if low is None else -int((-low).__floor__())
        last = max(limit, first) if high is None else int(high.__floor__())
        first += low is not None and low_open and first == low
        last -= high is not None and high_open and last == high
        if first > last:
            raise refused(path, "minimum", "and the maximum leave no whole number between them")
        return _whole_range(first, last)
    if low is None and high is None:
        return parse(
            rf"-?(?:0|[1-9][0-9]{{0,{_DIGITS - 1}}})(?:\.[0-9]{{1,{_DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
        )
    keyword = next(
        name for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if name in fields
    )
    for bound in (low, high):
        places = -int(bound.as_tuple().exponent) if bound is not None else 0
        if bound is not None and (abs(bound) > _LARGEST_BOUND or places > _FRACTION):
            raise refused(
                path, keyword, f"of a number is supported up to {_LARGEST_BOUND} and {_FRACTION} decimals"
            )
    pattern = _decimals(low, low_open, high, high_open)
    if pattern is None:
        raise refused(path, keyword, "leaves no number")
    return pattern


def _bound(
    fields: dict[str, Any], inclusive: str, exclusive: str, path: str, tighter: Callable[..., Any]
) -> tuple[Decimal | None, bool]:
    """The tighter of two bounds, and whether the bound itself is excluded."""
    found: list[tuple[Decimal, bool]] = []
    for keyword in (inclusive, exclusive):
        value = fields.get(keyword)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refused(path, keyword, f"{value!r:.60} is no number")
        try:
            found.append((Decimal(str(value)).normalize() + 0, keyword == exclusive))
        except InvalidOperation:
            raise refused(path, keyword, f"{value!r:.60} is no number") from None
        if not found[-1][0].is_finite() or abs(found[-1][0]) > Decimal(10) ** 30:
            raise refused(path, keyword, f"{value!r:.60} is too large")
    if not found:
        return None, False
    edge = tighter(value for value, _ in found)
    return edge, any(opened for value, opened in found if value == edge)


def _whole_range(first: int, last: int) -> Pattern:
    """The whole numbers from first to last."""
    options: list[Pattern] = []
    if first < 0:
        options.append(sequence("-", _digits(max(1, -last), -first)))
    if last >= 0:
        options.append(_digits(max(0, first), last))
    return options[0] if len(options) == 1 else Alternatives(tuple(options))


def _digits(first: int, last: int) -> Pattern:
    """The numbers from first to last, not negative, without leading zeros."""
    options: list[Pattern] = []
    for size in range(len(str(first)), len(str(last)) + 1):
        low, high = max(first, 10 ** (size - 1) if size > 1 else 0), min(last, 10**size - 1)
        options.append(_same_length(str(low), str(high)))
    return options[0] if len(options) == 1 else Alternatives(tuple(options))


def _same_length(low: str, high: str) -> Pattern:
    """Texts of digits from low to high, all of one length."""
    if not low:
        return EMPTY
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeated(_digit(0, 9), len(low), len(low))
    if low[0] == high[0]:
        return sequence(low[0], _same_length(low[1:], high[1:]))
    rest = len(low) - 1
    options = [
        sequence(low[0], _same_length(low[1:], "9" * rest)),
        sequence(high[0], _same_length("0" * rest, high[1:])),
    ]
    if int(high[0]) - int(low[0]) > 1:
        options.append(
            sequence(_digit(int(low[0]) + 1, int(high[0]) - 1), _same_length("0" * rest, "9" * rest))
        )
    return Alternatives(tuple(options))


def _digit(first: int, last: int) -> Pattern:
    return Characters(((48 + first, 48 + last),))


def _decimals(low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool) -> Pattern | None:
    """Decimal numbers between two bounds, without exponent; None if there are none."""
    limit = Decimal(10) ** _DIGITS - 1
    low, high = -limit if low is None else low, limit if high is None else high
    if low > high or (low == high and (low_open or high_open)):
        return None
    options: list[Pattern] = []
    if low < 0:  # the negative ones, mirrored
        floor, opened = (-high, high_open) if high < 0 else (Decimal(0), True)
        options += [sequence("-", part) for part in _positive(floor, opened, -low, low_open)]
    if high > 0 or (high == 0 and not high_open):
        floor, opened = (low, low_open) if low >= 0 else (Decimal(0), False)
        options += _positive(floor, opened, high, high_open)
    return Alternatives(tuple(options)) if options else None


def _positive(low: Decimal, low_open: bool, high: Decimal, high_open: bool) -> list[Pattern]:
    """Decimal numbers from low to high, 0 <= low, by their whole part: that of low, that of high, those between."""
    first, last = int(low), int(high)
    above = str(low - first)[2:] if low != first else ""
    below = str(high - last)[2:] if high != last else ""
    options: list[Pattern] = []
    if first == last:
        inside = _fraction(above, low_open, below, high_open, size=_FRACTION, started=False)
        return [sequence(str(first), inside)] if inside is not None else []
    from_low = _fraction(above, low_open, None, False, size=_FRACTION, started=False)
    to_high = _fraction("", False, below, high_open, size=_FRACTION, started=False)
    options += [sequence(str(first), from_low)] if from_low is not None else []
    options += [sequence(str(last), to_high)] if to_high is not None else []
    if last - first > 1:
        free = _fraction("", False, None, False, size=_FRACTION, started=False)
        assert free is not None
        options.append(sequence(_digits(first + 1, last - 1), free))
    return options


def _fraction(
    low: str, low_open: bool, high: str | None, high_open: bool, *, size: int, started: bool
) -> Pattern | None:
    """What may follow the whole part: nothing, or a point and up to `size` digits, between two fractions.

    The bounds are digits after the point; high is None where nothing bounds the number from above. `started`: the
    point is written, and we are at a digit that may be left out because one stands before it.
    """
    stop_fits = not low.strip("0") and not low_open
    if high is not None and high_open and not high.strip("0"):
        return None  # smaller than the rest of the bound, which is zero: impossible
    options: list[Pattern] = [EMPTY] if stop_fits else []
    if size:
        a = int(low[0]) if low else 0
        b = int(high[0]) if high else (0 if high is not None else 9)
        groups: dict[tuple[bool, bool], list[int]] = {}
        for digit in range(a, b + 1):
            groups.setdefault((digit == a, high is not None and digit == b), []).append(digit)
        for (at_low, at_high), digits in groups.items():
            rest = _fraction(
                low[1:] if at_low else "",
                low_open and at_low,
                (high or "")[1:] if at_high else None,
                high_open and at_high,
                size=size - 1,
                started=True,
            )
            if rest is not None:
                point = "" if started else "."
                options.append(sequence(point, _digit(digits[0], digits[-1]), rest))
    return Alternatives(tuple(options)) if options else None


# Values about which nothing is said


def _any_value(depth: int) -> Pattern:
    """Any JSON value with at most `depth` objects and arrays inside one another."""
    scalars = (_any_string(), _number({}, "#", whole=False), one_of("true", "false", "null"))
    if depth <= 0:
        return Alternatives(scalars)
    inner = _any_value(depth - 1)
    array = sequence("[", Repeated(inner, 0, None, literal(", ")), "]")
    return Alternatives((*scalars, _any_object(inner), array))


def _any_object(inner: Pattern) -> Pattern:
    member = sequence(_any_string(), ": ", inner)
    return sequence("{", Repeated(member, 0, None, literal(", ")), "}")
