"""The messages of one row on the host, with numpy: the same numbers as `messages.py`, without its padding.

A window has a few dozen slots and an automaton a few hundred edges: on a CPU, tensors that small cost more to start
than to compute. `messages.py` explains the method; a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voidpad.constrain.constraint import TokenAutomaton
from voidpad.constrain.messages import FRONTIER, NEVER, OUTSIDE, POSSIBLE, WILDCARD, WRITTEN

Floats = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class _Segments:
    """Values in the order of their segments; segments without values are left out."""

    order: Index | slice  # of the values
    start: Index  # where each segment starts in that order
    sizes: Index
    name: Index  # the number of each segment
    count: int

    @classmethod
    def of(cls, segment: NDArray[Any], count: int) -> _Segments:
        order: Index | slice = np.argsort(segment, kind="stable")
        ordered = segment[order]
        if np.array_equal(ordered, segment):
            order = slice(None)
        name, start, sizes = np.unique(ordered, return_index=True, return_counts=True)
        return cls(order, start, sizes, name.astype(np.intp), count)

    def spread(self, values: Floats) -> Floats:
        """Values of the segments that there are, as values of all; NEVER for the others."""
        out = np.full((*values.shape[:-1], self.count), NEVER)
        out[..., self.name] = values
        return out

    def maximum(self, values: Floats) -> Floats:
        return self.spread(np.maximum.reduceat(values[..., self.order], self.start, axis=-1))

    def log_total(self, values: Floats) -> Floats:
        ordered = values[..., self.order]
        top = np.maximum.reduceat(ordered, self.start, axis=-1)
        shares = np.exp(ordered - np.repeat(top, self.sizes, axis=-1))
        return self.spread(top + np.log(np.add.reduceat(shares, self.start, axis=-1)))


@dataclass(frozen=True)
class HostBeliefs:
    """As `messages.Beliefs`, for the slots of one row's frontier."""

    total: Floats  # (N, C)
    best: Floats  # (N, C)
    end: Floats  # (N,)
    tail: Floats  # (N,)


@dataclass(frozen=True)
class HostWindow:
    """As `messages.Window`, of one row. `classes` are the classes of written tokens, -1 for end tokens and others."""

    kind: NDArray[np.int64]  # (W,)
    classes: NDArray[np.int64]  # (W,)
    ended: NDArray[np.bool_]  # (W,)
    start: int
    final: Floats  # (S + 1,)


@dataclass(frozen=True)
class HostWeights:
    """As `messages.Weights`, of one row."""

    sets: Floats  # (W, U)
    end: Floats  # (W,)
    tail: Floats  # (W,)


class HostAutomaton:
    """An automaton with what its messages need."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton = automaton
        self.states = automaton.states
        sets = len(automaton.set_start) - 1
        self.source, self.target = automaton.source.astype(np.intp), automaton.target.astype(np.intp)
        self.edge_set = automaton.edge_set.astype(np.intp)
        self.items = automaton.set_class.astype(np.intp)
        self.item_set = np.repeat(np.arange(sets), np.diff(automaton.set_start))
        self.items_by_set = _Segments.of(self.item_set, sets)
        self.items_by_class = _Segments.of(self.items, automaton.classes)
        self.edges_by_source = _Segments.of(self.source, self.states)
        self.edges_by_target = _Segments.of(self.target, self.states)
        self.edges_by_set = _Segments.of(self.edge_set, sets)
        self.first_edge = np.searchsorted(self.source, np.arange(self.states + 1))
        self.cannot_end = np.where(automaton.accepting, 0.0, NEVER)

    def weights(self, window: HostWindow, beliefs: HostBeliefs, *, best: bool) -> HostWeights:
        """What each slot of a window adds to a text's weight."""
        width = len(window.kind)
        frontier, written = window.kind == FRONTIER, window.kind == WRITTEN
        sets = np.zeros((width, self.items_by_set.count))
        reduce = self.items_by_set.maximum if best else self.items_by_set.log_total
        sets[frontier] = reduce((beliefs.best if best else beliefs.total)[:, self.items])
        for slot in np.flatnonzero(written):
            sets[slot] = NEVER
            sets[slot, self.item_set[self.items == window.classes[slot]]] = 0.0
        end, tail = np.where(written & ~window.ended, NEVER, 0.0), np.zeros(width)
        end[frontier], tail[frontier] = beliefs.end, beliefs.tail
        return HostWeights(sets, end, tail)

    def backward(self, window: HostWindow, weights: HostWeights, *, best: bool) -> Floats:
        """The weight (W + 1, S + 1) of completing the text from each state."""
        reduce = self.edges_by_source.maximum if best else self.edges_by_source.log_total
        join = np.maximum if best else np.logaddexp
        found = np.empty((len(window.kind) + 1, self.states + 1))
        found[-1] = window.final
        for slot in range(len(window.kind) - 1, -1, -1):
            following, here = found[slot + 1], found[slot]
            if window.kind[slot] == OUTSIDE:
                here[:] = following
                continue
            edges = weights.sets[slot, self.edge_set] + following[self.target]
            stops = self.cannot_end + (weights.end[slot] + following[-1])
            join(reduce(edges), stops, out=here[:-1])
            here[-1] = weights.tail[slot] + following[-1]
            if window.kind[slot] == WILDCARD:
                here[:] = np.where(here > POSSIBLE, 0.0, NEVER)
        return found

    def forward(self, window: HostWindow, weights: HostWeights) -> Floats:
        """The weight (W + 1, S + 1) of arriving in each state."""
        found = np.empty((len(window.kind) + 1, self.states + 1))
        found[0] = NEVER
        found[0, window.start] = 0.0
        for slot in range(len(window.kind)):
            before, here = found[slot], found[slot + 1]
            if window.kind[slot] == OUTSIDE:
                here[:] = before
                continue
            here[:-1] = self.edges_by_target.log_total(
                weights.sets[slot, self.edge_set] + before[self.source]
            )
            stops = np.logaddexp.reduce(before[:-1] + self.cannot_end) + weights.end[slot]
            here[-1] = np.logaddexp(stops, before[-1] + weights.tail[slot])
            if window.kind[slot] == WILDCARD:
                here[:] = np.where(here > POSSIBLE, 0.0, NEVER)
        return found

    def follow(
        self, window: HostWindow, weights: HostWeights, messages: Floats, uniform: Floats | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The path of the heaviest text, or a random one: for each slot its set of classes, and whether the text ends.

        A slot at or after the end of the text has the number of sets in place of a set.
        """
        none = self.items_by_set.count
        sets = np.full(len(window.kind), none)
        ends = np.zeros(len(window.kind), bool)
        state = window.start
        for slot in range(len(window.kind)):
            if window.kind[slot] == OUTSIDE:
                continue
            following = messages[slot + 1]
            if state == self.states:
                continue
            edges = slice(self.first_edge[state], self.first_edge[state + 1])
            options = weights.sets[slot, self.edge_set[edges]] + following[self.target[edges]]
            leave = self.cannot_end[state] + weights.end[slot] + following[-1]
            options = np.append(options, leave)
            pick = int(options.argmax()) if uniform is None else _drawn(options, uniform[slot])
            if pick == len(options) - 1:
                ends[slot], state = True, self.states
            else:
                sets[slot] = self.edge_set[edges][pick]
                state = int(self.target[edges][pick])
        return sets, ends

    def marginals(self, weights: HostWeights, before: Floats, after: Floats) -> tuple[Floats, Floats, Floats]:
        """Per class (W, C) what to add to a token's log-probability; of the end token (W,); of having ended (W,)."""
        arrive, leave = before[:-1], after[1:]
        total = np.logaddexp.reduce(arrive + after[:-1], axis=-1)
        edges = arrive[:, self.source] + leave[:, self.target]
        per_set = self.edges_by_set.log_total(edges)
        per_class = self.items_by_class.log_total(per_set[:, self.item_set])
        can_end = np.logaddexp.reduce(arrive[:, :-1] + self.cannot_end, axis=-1)
        end = can_end + weights.end + leave[:, -1] - total
        over = arrive[:, -1] + weights.tail + leave[:, -1] - total
        return per_class - total[:, None], end, over


def _drawn(options: Floats, uniform: float) -> int:
    """An index drawn in proportion to the exponentials of the options, by inversion."""
    reached = np.exp(options - options.max()).cumsum()
    return int((reached > min(uniform, 1 - 1e-12) * reached[-1]).argmax())
