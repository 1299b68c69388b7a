"""Structured output: constraints on the text of an answer, compiled to automata over tokens.

Start with `constraint.py` (what users make), then `patterns.py` and `json_schema.py` (what they mean), `automaton.py`
and `vocabulary.py` (how they are compiled), and `messages.py` (how decoding obeys them).
"""

from voidpad.constrain.compile_worker import compile_in_worker
from voidpad.constrain.constraint import (
    Constraint,
    TokenAutomaton,
    choice,
    compile_constraint,
    json_object,
    json_schema,
    regex,
)
from voidpad.constrain.patterns import ConstraintError
from voidpad.constrain.vocabulary import Vocabulary, bytes_of_tokens

__all__ = [
    "Constraint",
    "ConstraintError",
    "TokenAutomaton",
    "Vocabulary",
    "bytes_of_tokens",
    "choice",
    "compile_constraint",
    "compile_in_worker",
    "json_object",
    "json_schema",
    "regex",
]
