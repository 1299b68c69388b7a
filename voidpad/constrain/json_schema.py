"""JSON schemas as patterns: the JSON texts of the values that a schema allows.

Each value is spelled in one way: `, ` and `: ` between parts, as Python's `json.dumps` has it; properties in the order
of the schema; no escape where a character can stand for itself; whole numbers without a fraction. Where a schema
allows more than we write, we write less, so that every text is valid: properties that the schema does not name are
left out, a `pattern` must match the whole string, and free numbers have at most 15 digits on each side of the point.

Keywords that restrict a value and are not listed here are refused by name.
"""

from __future__ import annotations

import json
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Annotated, Any, Literal

from annotated_types import Ge, Len
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from voidpad.constrain.patterns import (
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
    separated,
    sequence,
)

DEFAULT_DEPTH = 3  # of objects and arrays in a value about which the schema says nothing
_DEEPEST = 60  # schemas inside schemas
_DIGITS = 15
_PLACES = 6  # digits after the point in a number with bounds: few enough that a float keeps the order
_LARGEST_BOUND = 10**9  # of a number with a fraction
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


_ANNOTATIONS = {"$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description",
                "discriminator", "examples", "readOnly", "title", "writeOnly"}  # fmt: skip
_Type = Literal["object", "array", "string", "integer", "number", "boolean", "null"]
_TYPES: tuple[_Type, ...] = ("object", "array", "string", "integer", "number", "boolean", "null")
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_OF_TYPE: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": set(),
    "null": set(),
}
_Count = Annotated[int, Ge(0)]
_Options = Annotated[list["Schema"], Len(1)]


class Schema(BaseModel):
    """The keywords that we know. Annotations are dropped; `true` is the schema that allows everything."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)

    type: _Type | Annotated[list[_Type], Len(1)] | None = None
    enum: Annotated[list[Any], Len(1)] = []
    const: Any = None
    ref: str = Field("", alias="$ref")
    any_of: _Options = []
    one_of: _Options = []
    all_of: Annotated[list[Schema], Len(1, 1)] = []  # several would have to be merged
    properties: dict[str, Schema] | None = None
    required: list[str] = []
    additional_properties: Schema | Literal[False] | None = None
    min_properties: _Count = 0
    max_properties: _Count | None = None
    items: Schema | Literal[False] | None = None
    prefix_items: list[Schema] = []
    min_items: _Count = 0
    max_items: _Count | None = None
    unique_items: Literal[False] = False
    min_length: _Count = 0
    max_length: _Count | None = None
    pattern: str = ""
    format: str = ""
    minimum: int | float | None = None
    maximum: int | float | None = None
    exclusive_minimum: int | float | None = None
    exclusive_maximum: int | float | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_annotations(cls, value: Any) -> Any:
        value = {} if value is True else value
        return {k: v for k, v in value.items() if k not in _ANNOTATIONS} if isinstance(value, dict) else value

    @property
    def given(self) -> set[str]:
        """The keywords that the schema has."""
        return {str(type(self).model_fields[name].alias) for name in self.model_fields_set}

    @property
    def values(self) -> list[Any] | None:
        """The only values that are allowed; None if the schema does not list them."""
        return [self.const] if "const" in self.given else self.enum or None

    @property
    def types(self) -> list[_Type]:
        return [self.type] if isinstance(self.type, str) else self.type or list(_TYPES)


def schema_pattern(schema: Any, *, depth: int = DEFAULT_DEPTH) -> Pattern:
    """The pattern of a schema's JSON texts; `depth` bounds values about which the schema says nothing."""
    try:
        return _Translator(schema, depth).value(_read(schema, "#"), "#")
    except RecursionError:
        raise refused("#", "schema", "is nested too deeply") from None


def object_pattern(depth: int = DEFAULT_DEPTH) -> Pattern:
    """Any JSON object in which objects and arrays are nested at most `depth` deep, itself included."""
    if not 1 <= depth <= 5:
        raise ConstraintError(f"json_object: depth {depth} is outside 1 to 5.", "depth")
    return _map(_any_value(depth - 1))


def refused(path: str, keyword: str, why: str) -> ConstraintError:
    """The refusal of one keyword, with its place in the schema."""
    return ConstraintError(f"json_schema: {keyword} {why} (at {path[:200]}).", keyword)


def _read(schema: Any, path: str) -> Schema:
    """The keywords of a schema; the first that is unknown, or has a value that it cannot have, is refused."""
    try:
        return Schema.model_validate(schema)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    aliases = {str(field.alias) for field in Schema.model_fields.values()}
    place = [str(part) for part in found["loc"]]
    unknown = found["type"] == "extra_forbidden"
    keywords = [part for part in place if part in aliases]
    keyword = place[-1] if unknown else (keywords or ["schema"])[-1]
    why = "is not supported" if unknown else f"is not supported as {found['input']!r:.60}"
    raise refused("/".join([path, *place]), keyword, why)


class _Translator:
    """Walks a schema. `path` says where in the schema we are."""

    def __init__(self, root: Any, depth: int) -> None:
        self.root = root
        self.depth = depth
        self.definitions: dict[str, Pattern] = {}
        self.references: list[str] = []  # the $refs that led to where we are

    def value(self, schema: Schema, path: str) -> Pattern:
        if path.count("/") > 2 * _DEEPEST:
            raise refused(path, "schema", "is nested too deeply")
        for keyword in ("$ref", "const", "enum", "anyOf", "oneOf", "allOf"):  # they say all there is to say
            if keyword in schema.given:
                if beside := sorted(schema.given - {keyword, "type"}):
                    raise refused(path, beside[0], f"beside {keyword} is not supported")
                if keyword == "$ref":
                    return self._reference(schema.ref, path)
                if schema.values is not None:
                    return _listed(keyword, schema.values, schema.types, path)
                return self._options(keyword, schema, path)
        return self._typed(schema, path)

    def _reference(self, target: str, path: str) -> Pattern:
        if target in self.references or target == "#":
            raise refused(path, "$ref", f"{target!r:.60} is recursive, which is not supported")
        if len(self.references) > _DEEPEST:
            raise refused(path, "$ref", "is nested too deeply")
        if target not in self.definitions:
            self.references.append(target)
            self.definitions[target] = self.value(self._resolved(target, path), target)
            self.references.pop()
        return self.definitions[target]

    def _resolved(self, target: str, path: str) -> Schema:
        found = self.root
        if not target.startswith("#"):
            raise refused(path, "$ref", f"{target!r:.60} leads out of the schema, which is not supported")
        for step in target[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                raise refused(path, "$ref", f"{target!r:.60} names nothing in the schema")
            found = found[step]
        return _read(found, target)

    def _options(self, keyword: str, schema: Schema, path: str) -> Pattern:
        options = schema.any_of or schema.one_of or schema.all_of
        patterns = [self.value(one, f"{path}/{keyword}/{n}") for n, one in enumerate(options)]
        # Of oneOf, no value may fit two options: their types differ, or a required constant does.
        facts = [self._facts(option, path) for option in schema.one_of]
        for index, (types, constants) in enumerate(facts):
            for other_types, other in facts[index + 1 :]:
                shared = constants.keys() & other.keys()
                if types & other_types and not any(
                    constants[name].isdisjoint(other[name]) for name in shared
                ):
                    raise refused(path, "oneOf", "has options that one value could fit at once; use anyOf")
        return Alternatives(tuple(patterns))

    def _facts(self, schema: Schema, path: str) -> tuple[set[str], dict[str, set[str]]]:
        """The types of a schema's values, and, of objects, the required properties that can have few values."""
        while schema.ref:
            schema = self._resolved(schema.ref, path)
        types = set(schema.types if schema.values is None else map(json_type, schema.values))
        if "number" in types:
            types.add("integer")
        constants: dict[str, set[str]] = {}
        for name, inner in (schema.properties or {}).items():
            if name in schema.required and inner.values is not None and types == {"object"}:
                constants[name] = {spelled(value) for value in inner.values}
        return types, constants

    def _typed(self, schema: Schema, path: str) -> Pattern:
        given, types = schema.given - {"type"}, schema.types
        if "type" not in schema.given:
            if not given:
                return _any_value(self.depth - 1)
            types = [name for name in ("object", "array", "string") if given <= _OF_TYPE[name]]
            if not types:
                raise refused(path, sorted(given)[0], "needs a type beside it")
        for keyword in sorted(given):
            if not any(keyword in _OF_TYPE[name] for name in types):
                raise refused(path, keyword, f"does not go with type {', '.join(types)}")
        return one_of(*(self._of_type(name, schema, path) for name in types))

    def _of_type(self, name: str, schema: Schema, path: str) -> Pattern:
        match name:
            case "object":
                return self._object(schema, path)
            case "array":
                return self._array(schema, path)
            case "string":
                return _string(schema, path)
            case "boolean":
                return one_of("true", "false")
            case "null":
                return literal("null")
        return _number(schema, path, whole=name == "integer")

    def _object(self, schema: Schema, path: str) -> Pattern:
        properties, further = schema.properties, schema.additional_properties
        least, most = schema.min_properties, schema.max_properties
        missing = [name for name in schema.required if name not in (properties or {})]
        if missing:
            raise refused(path, "required", f"names {missing[0]!r:.60}, which properties does not describe")
        if properties:
            if least > len(schema.required):
                raise refused(
                    path, "minProperties", "above the number of required properties is not supported"
                )
            if most is not None and most < len(properties):
                raise refused(path, "maxProperties", "below the number of properties is not supported")
            members = []
            for name, inner in properties.items():
                value = self.value(inner, f"{path}/properties/{name}")
                members.append((sequence(f"{spelled(name)}: ", value), name in schema.required))
            return sequence("{", Listed(tuple(members), literal(", ")), "}")
        if further is False or properties is not None:
            return literal("{}")
        if least > 1:  # a name could come twice, so a second member may not be counted on
            raise refused(path, "minProperties", "above 1 needs properties beside it")
        if further is None:
            return _map(_any_value(self.depth - 2), least, most)
        return _map(self.value(further, f"{path}/additionalProperties"), least, most)

    def _array(self, schema: Schema, path: str) -> Pattern:
        least, most = schema.min_items, schema.max_items
        first = [
            self.value(one, f"{path}/prefixItems/{index}") for index, one in enumerate(schema.prefix_items)
        ]
        if first or schema.items is False:
            if schema.items or least > len(first):
                raise refused(path, "items", "beside prefixItems is not supported, unless it is false")
            most = len(first) if most is None else min(most, len(first))
        if most is not None and least > most:
            raise refused(path, "minItems", f"{least} is more than the {most} items that the array may have")
        if first:
            tail = literal("")
            for index in range(most or 0, 0, -1):
                head = sequence(", " if index > 1 else "", first[index - 1], tail)
                tail = head if index <= least else optional(head)
            return sequence("[", tail, "]")
        if schema.items:
            inner = self.value(schema.items, f"{path}/items")
        else:
            inner = _any_value(self.depth - 2)
        return sequence("[", separated(inner, least, most), "]")


# Values that are listed


def _listed(keyword: str, values: list[Any], types: list[_Type], path: str) -> Pattern:
    """The values of these types."""
    fitting = [value for value in values if _is_a(value, types)]
    if not fitting:
        raise refused(path, keyword, f"has no value of type {', '.join(types)}")
    return one_of(*dict.fromkeys(spelled(value) for value in fitting))


def spelled(value: Any) -> str:
    """A JSON value in the one spelling that we write."""
    return json.dumps(value, ensure_ascii=False)


def json_type(value: Any) -> str:
    """The JSON Schema type of a value, integer before number."""
    names = {dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean"}
    return names.get(type(value), "null")


def _is_a(value: Any, types: list[_Type]) -> bool:
    kind = json_type(value)
    whole = kind == "integer" or (kind == "number" and float(value).is_integer())
    return kind in types or (kind == "integer" and "number" in types) or (whole and "integer" in types)


# Strings


def _letter() -> Pattern:
    """One character of a free string, spelled in JSON. Control characters without a short escape are left out."""
    escapes = tuple((ord(letter), ord(letter)) for letter in sorted(_ESCAPED.values()))
    return one_of(Characters(_PLAIN), sequence("\\", Characters(escapes)))


def _in_json(pattern: Pattern) -> Pattern:
    """A pattern of texts as the pattern of their spellings inside a JSON string."""
    match pattern:
        case Characters():
            special = [p for p in (*range(32), 34, 92) if intersection(pattern.ranges, ((p, p),))]
            escapes = [f"\\{_ESCAPED[p]}" if p in _ESCAPED else f"\\u{p:04x}" for p in special]
            return one_of(Characters(intersection(pattern.ranges, _PLAIN)), *escapes)
        case Sequenced():
            return Sequenced(tuple(map(_in_json, pattern.parts)))
        case Alternatives():
            return Alternatives(tuple(map(_in_json, pattern.options)))
        case Repeated():
            return Repeated(_in_json(pattern.part), pattern.least, pattern.most)
    raise TypeError(pattern)


def _string(schema: Schema, path: str) -> Pattern:
    least, most = schema.min_length, schema.max_length
    if most is not None and least > most:
        raise refused(path, "minLength", f"{least} is more than maxLength {most}")
    contents: list[Pattern] = []
    if "format" in schema.given:
        if schema.format not in FORMATS:
            raise refused(path, "format", f"{schema.format!r:.60} is unknown; use {', '.join(FORMATS)}")
        contents.append(parse(FORMATS[schema.format]))
    if "pattern" in schema.given:
        try:
            contents.append(_in_json(parse(schema.pattern)))
        except ConstraintError as error:
            raise refused(path, "pattern", str(error).removesuffix(".")) from None
    if schema.given & {"minLength", "maxLength"} or not contents:
        any_letter = _in_json(Characters(((0, 0x10FFFF),))) if contents else _letter()
        contents.append(Repeated(any_letter, least, most))
    content = contents[0]
    for other in contents[1:]:
        content = Both(content, other)
    return sequence('"', content, '"')


# Numbers


def _number(schema: Schema, path: str, *, whole: bool) -> Pattern:
    """Numbers within bounds. Those without any have at most 15 digits before and after the point.

    With at most `places` decimals, a bound is a whole number of units of the last place.
    """
    keywords = sorted(schema.given & _BOUNDS)
    if not whole and not keywords:
        return parse(
            rf"-?(?:0|[1-9][0-9]{{0,{_DIGITS - 1}}})(?:\.[0-9]{{1,{_DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
        )
    places = 0 if whole else _PLACES
    bounds = (schema.minimum, schema.exclusive_minimum, schema.maximum, schema.exclusive_maximum)
    largest = 10**30 if whole else _LARGEST_BOUND
    if any(bound is not None and not -largest <= bound <= largest for bound in bounds):
        raise refused(path, keywords[0], f"is supported up to {largest}")
    minimum, above, maximum, below = (
        None if bound is None else Decimal(str(bound)).scaleb(places) for bound in bounds
    )
    lows = [] if minimum is None else [int(minimum.to_integral_value(ROUND_CEILING))]
    lows += [] if above is None else [int(above.to_integral_value(ROUND_FLOOR)) + 1]
    highs = [] if maximum is None else [int(maximum.to_integral_value(ROUND_FLOOR))]
    highs += [] if below is None else [int(below.to_integral_value(ROUND_CEILING)) - 1]
    limit = 10 ** (_DIGITS + places) - 1
    low = max(lows) if lows else -max(limit, -min(highs, default=0))
    high = min(highs) if highs else max(limit, low)
    if low > high:
        raise refused(path, keywords[0], "leaves no number")
    options = [_digits(max(0, low), high, places)] if high >= 0 else []
    if low < 0:
        options.append(sequence("-", _digits(max(1, -high), -low, places)))
    return one_of(*options)


def _digits(low: int, high: int, places: int) -> Pattern:
    """The decimal numbers from low to high, not negative, counted in units of the last of `places` decimals."""
    options = []
    for size in range(max(len(str(low)), places + 1), max(len(str(high)), places + 1) + 1):
        first = max(low, 10 ** (size - 1) if size > places + 1 else 0)
        options.append(_between(f"{first:0{size}}", f"{min(high, 10**size - 1):0{size}}", places))
    return one_of(*options)


def _between(low: str, high: str, places: int) -> Pattern:
    """Texts of digits from low to high, which have one length; the last `places` of them stand after a point.

    Of the digits after the point, any may be left out at the end if zeros in their place are in the range.
    """
    if not low:
        return literal("")
    nines, rest = "9" * (len(low) - 1), len(low) - 1
    if int(low) == 0 and high == "9" * len(high):
        ranges = [("0", "9", low[1:], nines)]
    elif low[0] == high[0]:
        ranges = [(low[0], low[0], low[1:], high[1:])]
    else:
        ranges = [(low[0], low[0], low[1:], nines), (high[0], high[0], "0" * rest, high[1:])]
        if int(high[0]) - int(low[0]) > 1:
            ranges.append((chr(ord(low[0]) + 1), chr(ord(high[0]) - 1), "0" * rest, nines))
    options = []
    for first, last, low_rest, high_rest in ranges:
        tail = _between(low_rest, high_rest, places)
        if rest and rest <= places:  # the digits that follow stand after the point
            tail = sequence("." if rest == places else "", tail)
            tail = optional(tail) if int(low_rest) == 0 else tail
        options.append(sequence(Characters(((ord(first), ord(last)),)), tail))
    return one_of(*options)


# Values about which nothing is said


def _any_value(depth: int) -> Pattern:
    """Any JSON value with at most `depth` objects and arrays inside one another."""
    scalars = (_any_string(), _number(_read({}, "#"), "#", whole=False), one_of("true", "false", "null"))
    if depth <= 0:
        return one_of(*scalars)
    inner = _any_value(depth - 1)
    return one_of(*scalars, _map(inner), sequence("[", separated(inner, 0, None), "]"))


def _any_string() -> Pattern:
    return sequence('"', Repeated(_letter(), 0, None), '"')


def _map(inner: Pattern, least: int = 0, most: int | None = None) -> Pattern:
    """An object whose members have any names and values of this pattern."""
    member = sequence(_any_string(), ": ", inner)
    return sequence("{", separated(member, least, most), "}")
