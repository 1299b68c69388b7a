"""What a row carries: its constraint, compiled for its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from voidpad.constrain.constraint import Constraint, TokenAutomaton
from voidpad.constrain.host import HostAutomaton
from voidpad.constrain.messages import Tables, tables_of


@dataclass(frozen=True, eq=False)
class RowConstraint:
    """A row's constraint, compiled for its model. `closed`: the text fills the slots exactly, as in a gap."""

    constraint: Constraint
    automaton: TokenAutomaton
    closed: bool = False
    _tables: dict[torch.device, Tables] = field(default_factory=dict, repr=False)

    def tables(self, device: torch.device) -> Tables:
        """The automaton as tensors on a device."""
        if device not in self._tables:
            with torch.inference_mode(False):
                self._tables[device] = tables_of([self.automaton], device)
        return self._tables[device]

    @cached_property
    def host(self) -> HostAutomaton:
        """The automaton with what messages on the host need."""
        return HostAutomaton(self.automaton)

    @property
    def shortest(self) -> int:
        """The fewest slots that hold a text that matches and, unless the window is closed, the end token."""
        return self.automaton.shortest + (not self.closed)

    def accepts(self, tokens: Sequence[int], ends: Sequence[int]) -> bool:
        """Whether an answer, up to its first end token, matches."""
        text = [*tokens]
        stop = next((place for place, token in enumerate(text) if token in ends), len(text))
        state = self.automaton.state_after(text[:stop])
        return state >= 0 and bool(self.automaton.accepting[state])


@dataclass(frozen=True, eq=False)
class GapConstraints:
    """The constraints of a template's gaps, from left to right, None for a gap without one. Each must be closed."""

    gaps: tuple[RowConstraint | None, ...]
