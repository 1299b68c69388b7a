"""Structured output: constraints on the text of an answer, compiled to automata over tokens.

Start with `constraint.py` (what users make), then `patterns.py` and `json_schema.py` (what they mean), `automaton.py`,
`tokens.py` and `compile.py` (how they are compiled), and `messages.py` (how decoding obeys them).
"""

from voidpad.constrain.compile import compile_constraint
from voidpad.constrain.constraint import Constraint, choice, json_object, json_schema, regex
from voidpad.constrain.patterns import ConstraintError
from voidpad.constrain.tokens import TokenAutomaton, Vocabulary, bytes_of_tokens

__all__ = [
    "Constraint",
    "ConstraintError",
    "TokenAutomaton",
    "Vocabulary",
    "bytes_of_tokens",
    "choice",
    "compile_constraint",
    "json_object",
    "json_schema",
    "regex",
]
