"""What a row carries: its constraint, compiled for its model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch

from voidpad.constrain.compile import compile_constraint
from voidpad.constrain.constraint import Constraint, as_constraint
from voidpad.constrain.messages import Messages, TokenTables
from voidpad.constrain.tokens import TokenAutomaton, Vocabulary, bytes_of_tokens
from voidpad.roles import Roles


@dataclass(frozen=True, eq=False)
class RowConstraint:
    """A row's constraint, compiled for its model. `closed`: the text fills the slots exactly, as in a gap."""

    constraint: Constraint
    automaton: TokenAutomaton
    closed: bool = False
    _tables: dict[tuple[Roles, torch.device], TokenTables] = field(default_factory=dict, repr=False)

    @cached_property
    def messages(self) -> Messages:
        return Messages(self.automaton)

    def tables(self, roles: Roles, device: torch.device) -> TokenTables:
        if (roles, device) not in self._tables:
            self._tables[roles, device] = TokenTables(self.messages, roles, device)
        return self._tables[roles, device]

    @property
    def gaps(self) -> tuple[RowConstraint]:
        """The constraint of each run of the row's slots, as `GapConstraints` has them: this one."""
        return (self,)

    @property
    def shortest(self) -> int:
        """The fewest slots that hold a text that matches and, unless the window is closed, the end token."""
        return self.automaton.shortest + (not self.closed)

    def accepts(self, tokens: Sequence[int], ends: Sequence[int]) -> bool:
        """Whether an answer, up to its first end token, matches."""
        stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
        state = self.automaton.state_after(tokens[:stop])
        return state >= 0 and bool(self.automaton.accepting[state])


@dataclass(frozen=True, eq=False)
class GapConstraints:
    """The constraints of a template's gaps, from left to right, None for a gap without one. Each must be closed."""

    gaps: tuple[RowConstraint | None, ...]


_vocabularies: WeakKeyDictionary[Any, dict[tuple[int, frozenset[int]], Vocabulary]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Compiler:
    """Compiles constraints for a tokenizer. Threads may share one."""

    tokenizer: Any
    roles: Roles
    size: int  # ids that the network knows, which may be more than the tokenizer's

    def vocabulary(self, ban: Iterable[int] = ()) -> Vocabulary:
        """The tokens that are text, without special tokens, tokens with a role and banned ones; made once."""
        banned = frozenset(ban) | self.roles.all()
        known = _vocabularies.setdefault(self.tokenizer, {})
        if (self.size, banned) not in known:
            tokens = bytes_of_tokens(self.tokenizer)
            known[self.size, banned] = Vocabulary.of(tokens, exclude=banned, size=self.size)
        return known[self.size, banned]

    def __call__(
        self, constraint: Any, *, ban: Iterable[int] = (), closed: bool = False, worker: bool = False
    ) -> RowConstraint:
        """A constraint as rows carry it; a pydantic model class stands for its schema.

        `ban` are ids that the plan never writes. `closed`: the text fills its slots exactly, without an end token.
        With `worker`, compiling happens in a process that is killed when it takes too much time or memory.
        """
        return _compiled(as_constraint(constraint), self.vocabulary(ban), closed, worker)


@lru_cache(64)
def _compiled(constraint: Constraint, vocabulary: Vocabulary, closed: bool, worker: bool) -> RowConstraint:
    return RowConstraint(constraint, compile_constraint(constraint, vocabulary, worker=worker), closed)
