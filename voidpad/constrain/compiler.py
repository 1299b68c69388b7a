"""Constraints compiled for one model."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

from voidpad.constrain.compile_worker import compile_in_worker
from voidpad.constrain.constraint import Constraint, compile_constraint, json_schema
from voidpad.constrain.patterns import ConstraintError
from voidpad.constrain.row import RowConstraint
from voidpad.constrain.vocabulary import Vocabulary, bytes_of_tokens
from voidpad.roles import Roles

_MOST_KEPT = 64  # compiled constraints in memory


class Compiler:
    """Compiles constraints for a tokenizer and keeps what it has made. Threads may share one."""

    def __init__(self, tokenizer: Any, roles: Roles, size: int) -> None:
        """`size` is the number of ids that the network knows, which may be more than the tokenizer's."""
        self._tokenizer = ref(tokenizer)  # weak: the compiler is kept for as long as its tokenizer is
        self.roles, self.size = roles, size
        self._vocabularies: dict[frozenset[int], Vocabulary] = {}
        self._made: dict[tuple[Constraint, frozenset[int], bool], RowConstraint] = {}
        self._lock = Lock()

    def vocabulary(self, ban: Iterable[int] = ()) -> Vocabulary:
        """The tokens that are text, without special tokens, tokens with a role and banned ones."""
        banned = frozenset(ban) | self.roles.all()
        with self._lock:
            if banned not in self._vocabularies:
                tokens = bytes_of_tokens(self._tokenizer())
                self._vocabularies[banned] = Vocabulary.of(tokens, exclude=banned, size=self.size)
            return self._vocabularies[banned]

    def __call__(
        self, constraint: Any, *, ban: Iterable[int] = (), closed: bool = False, worker: bool = False
    ) -> RowConstraint:
        """A constraint as rows carry it; a pydantic model class stands for its schema.

        `ban` are ids that the plan never writes. `closed`: the text fills its slots exactly, without an end token.
        With `worker`, compiling happens in a process that is killed when it takes too much time or memory.
        """
        ready = as_constraint(constraint)
        key = (ready, frozenset(ban), closed)
        with self._lock:
            if key in self._made:
                self._made[key] = self._made.pop(key)  # the least recently used one stands first
                return self._made[key]
        make = compile_in_worker if worker else compile_constraint
        made = RowConstraint(ready, make(ready, self.vocabulary(ban)), closed)
        with self._lock:
            self._made[key] = made
            for old in list(self._made)[:-_MOST_KEPT]:
                del self._made[old]
        return made


_compilers: WeakKeyDictionary[Any, dict[tuple[Roles, int], Compiler]] = WeakKeyDictionary()


def compiler_for(tokenizer: Any, roles: Roles, size: int) -> Compiler:
    """The compiler of a model; every call for the same tokenizer, roles and size returns the same one."""
    return _compilers.setdefault(tokenizer, {}).setdefault((roles, size), Compiler(tokenizer, roles, size))


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
