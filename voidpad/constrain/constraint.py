"""Constraints: what an answer must look like, as plain values. `compile.py` makes automata of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from voidpad.constrain.automaton import ByteAutomaton, automaton_of
from voidpad.constrain.json_schema import DEFAULT_DEPTH, object_pattern, schema_pattern
from voidpad.constrain.patterns import ConstraintError, Pattern, one_of, parse

_MOST_CHOICES = 10_000
_LONGEST_SOURCE = 200_000  # characters


@dataclass(frozen=True)
class Constraint:
    """A regular language that the text of an answer belongs to. Hashable and picklable; `source` is JSON."""

    kind: str  # choice, regex, json_schema or json_object
    source: str

    def __post_init__(self) -> None:
        if len(self.source) > _LONGEST_SOURCE:
            raise ConstraintError(
                f"{self.kind}: {len(self.source)} characters are over the limit of {_LONGEST_SOURCE}.",
                self.kind,
            )

    def pattern(self) -> Pattern:
        """The constraint as a pattern; what cannot be honoured is refused here, by name."""
        value = json.loads(self.source)
        if self.kind == "choice":
            return one_of(*value)
        if self.kind == "regex":
            return parse(value)
        if self.kind == "json_object":
            return object_pattern(value)
        return schema_pattern(value)

    def automaton(self) -> ByteAutomaton:
        """The minimal automaton over bytes; refuses constraints that no text satisfies."""
        return _byte_automaton(self)

    def matches(self, text: str) -> bool:
        """Whether a text satisfies the constraint."""
        return self.automaton().accepts(text.encode("utf-8", "surrogatepass"))

    def __str__(self) -> str:
        return f"{self.kind} {self.source:.60}"


@lru_cache(64)
def _byte_automaton(constraint: Constraint) -> ByteAutomaton:
    automaton = automaton_of(constraint.pattern())
    if not len(automaton.table):
        raise ConstraintError(f"{constraint}: no text satisfies this constraint.", constraint.kind)
    return automaton


def choice(options: Iterable[str]) -> Constraint:
    """The answer is one of these texts."""
    texts = [options] if isinstance(options, str) else list(dict.fromkeys(options))
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ConstraintError("choice: give at least one text, and no empty one.", "choice")
    if len(texts) > _MOST_CHOICES:
        raise ConstraintError(f"choice: {len(texts)} texts are over the limit of {_MOST_CHOICES}.", "choice")
    return Constraint("choice", json.dumps(texts))


def regex(expression: str) -> Constraint:
    """The whole answer matches a regular expression, as `re.fullmatch` would have it.

    Look-around, back-references, \\b and the flags i, m and L are refused; see `voidpad.constrain.patterns`.
    """
    parse(expression)
    return Constraint("regex", json.dumps(expression))


def json_schema(schema: Any) -> Constraint:
    """The answer is the JSON text of a value that a schema allows: a dict, JSON text, or a pydantic model class.

    Parts are separated by `, ` and `: `, properties stand in the order of the schema.
    """
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        source = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"json_schema: is no JSON ({error!s:.100}).", "json_schema") from None
    if not isinstance(schema, Mapping):
        raise ConstraintError(
            f"json_schema: {schema!r:.60} is neither a dict nor a pydantic model class.", "json_schema"
        )
    schema_pattern(schema)
    return Constraint("json_schema", source)


def json_object(depth: int = DEFAULT_DEPTH) -> Constraint:
    """The answer is a JSON object, any one whose objects and arrays are nested at most `depth` deep."""
    object_pattern(depth)
    return Constraint("json_object", json.dumps(depth))


def as_constraint(value: Any) -> Constraint:
    """A constraint as it is, or the schema of a pydantic model class."""
    if isinstance(value, Constraint):
        return value
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        return json_schema(value)
    raise ConstraintError(
        f"constraint: {value!r:.60} is none; use voidpad.choice, regex or json_schema, or a pydantic model class.",
        "constraint",
    )
