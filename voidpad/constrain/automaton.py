"""Deterministic automata over bytes: from a pattern to the smallest one that accepts the same texts.

A pattern becomes a nondeterministic automaton (Thompson's construction, built from the end so that parts with the
same continuation are shared), then a deterministic one (sets of states), then a minimal one (partition refinement),
in which every state can still reach an accepting one. Bytes that no state tells apart share a column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from voidpad.constrain.patterns import (
    Alternatives,
    Both,
    Characters,
    ConstraintError,
    Listed,
    Pattern,
    Repeated,
    Sequenced,
    utf8_ranges,
)

MOST_STATES = 20_000  # of the minimal automaton
_MOST_SETS = 4 * MOST_STATES  # of the deterministic automaton before it is minimised
_MOST_PARTS = 400_000  # of the nondeterministic automaton
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class ByteAutomaton:
    """A minimal automaton over bytes. State 0 is the start, and every state reaches an accepting one.

    An automaton without states accepts nothing.
    """

    column: Ints  # (256,) the column of each byte
    table: Ints  # (states, columns) the next state; -1 where no text continues
    accepting: Bools  # (states,)

    def accepts(self, text: bytes) -> bool:
        """Whether the automaton accepts this text."""
        state = 0 if len(self.table) else -1
        for byte in text:
            if state < 0:
                return False
            state = int(self.table[state, self.column[byte]])
        return state >= 0 and bool(self.accepting[state])


def automaton_of(pattern: Pattern) -> ByteAutomaton:
    """The minimal automaton of a pattern; refuses patterns whose automaton has more than MOST_STATES states."""
    built = _Nondeterministic()
    try:
        start = built.add(pattern, built.end)
    except RecursionError:
        raise ConstraintError("the constraint is nested too deeply; make it flatter.", "depth") from None
    minimal = _minimal(*_deterministic(built, start))
    _limited(len(minimal.table), MOST_STATES, "states")
    return minimal


def _limited(count: int, most: int, what: str) -> None:
    if count > most:
        raise ConstraintError(
            f"the constraint has {count} {what} or more, over the limit of {most}; use smaller bounds or fewer "
            "alternatives.",
            "size",
        )


class _Nondeterministic:
    """States with edges over ranges of bytes and with free edges. State `end` accepts."""

    end = 0

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = [[]]  # (first byte, last byte, target) of each state
        self.free: list[list[int]] = [[]]
        self._known: dict[tuple[int, int], int] = {}
        self._tails: dict[tuple[tuple[tuple[int, int], ...], int], int] = {}

    def state(self) -> int:
        self.edges.append([])
        self.free.append([])
        _limited(len(self.edges), _MOST_PARTS, "parts with its repetitions written out")
        return len(self.edges) - 1

    def add(self, pattern: Pattern, then: int) -> int:
        """A state from which this pattern leads to the state `then`."""
        key = (id(pattern), then)
        if key not in self._known:
            self._known[key] = self._added(pattern, then)
        return self._known[key]

    def _added(self, pattern: Pattern, then: int) -> int:
        match pattern:
            case Characters():
                start = self.state()
                for spelling in utf8_ranges(pattern.ranges):
                    self.edges[start].append((*spelling[0], self._tail(spelling[1:], then)))
                return start
            case Sequenced():
                for part in reversed(pattern.parts):
                    then = self.add(part, then)
                return then
            case Alternatives():
                return self._fork(self.add(option, then) for option in pattern.options)
            case Repeated():
                return self._repeated(pattern, then)
            case Listed():
                return self._listed(pattern, then)
            case Both():
                return self._spliced(automaton_of(pattern.one), automaton_of(pattern.other), then)

    def _tail(self, spelling: tuple[tuple[int, int], ...], then: int) -> int:
        """A state from which these bytes lead to `then`."""
        if not spelling:
            return then
        if (spelling, then) not in self._tails:
            following = self._tail(spelling[1:], then)
            self._tails[spelling, then] = start = self.state()
            self.edges[start].append((*spelling[0], following))
        return self._tails[spelling, then]

    def _fork(self, targets: Iterable[int]) -> int:
        start = self.state()
        self.free[start] += targets
        return start

    def _repeated(self, pattern: Repeated, then: int) -> int:
        if pattern.most is None:
            after = self.state()
            self.free[after] += [self.add(pattern.part, after), then]
        else:
            after = then
            for _ in range(pattern.most - pattern.least):
                after = self._fork((self.add(pattern.part, after), then))
        for _ in range(pattern.least):
            before, after = after, self.add(pattern.part, after)
            if before == after:  # nothing, however often it is repeated
                break
        return after

    def _listed(self, pattern: Listed, then: int) -> int:
        """Two rows of states: nothing is written yet, and something is, so that a separator comes next."""
        written, fresh = then, then
        for part, required in reversed(pattern.parts):
            inner = self.add(part, written)
            separated = self.add(pattern.separator, inner)
            written = separated if required else self._fork((separated, written))
            fresh = inner if required else self._fork((inner, fresh))
        return fresh

    def _spliced(self, one: ByteAutomaton, other: ByteAutomaton, then: int) -> int:
        """The product of two automata as states of this one."""
        start = self.state()
        if not len(one.table) or not len(other.table):
            return start
        places, queue = {(0, 0): start}, [(0, 0)]
        # Bytes in a row that share a column in both automata share an edge.
        cuts = np.flatnonzero(np.diff(one.column) | np.diff(other.column)) + 1
        ranges = [(int(run[0]), int(run[-1])) for run in np.split(np.arange(256), cuts)]
        for left, right in queue:  # it grows while we read it
            here = places[left, right]
            if one.accepting[left] and other.accepting[right]:
                self.free[here].append(then)
            for first, last in ranges:
                target = (
                    int(one.table[left, one.column[first]]),
                    int(other.table[right, other.column[first]]),
                )
                if min(target) < 0:
                    continue
                if target not in places:
                    places[target] = self.state()
                    queue.append(target)
                self.edges[here].append((first, last, places[target]))
        return start


def _deterministic(built: _Nondeterministic, start: int) -> tuple[Ints, Ints, Bools]:
    """The automaton whose states are sets of states: column of each byte, table (-1: nothing follows), accepting."""
    cuts = sorted({0, 256, *(edge for row in built.edges for a, b, _ in row for edge in (a, b + 1))})
    column = (np.searchsorted(cuts, np.arange(256), side="right") - 1).astype(np.int32)
    at = {cut: index for index, cut in enumerate(cuts)}
    closures: dict[int, frozenset[int]] = {}

    def closure(state: int) -> frozenset[int]:
        """The states with edges, or the end, that free edges reach."""
        if state not in closures:
            seen, stack, kept = {state}, [state], []
            while stack:
                one = stack.pop()
                if built.edges[one] or one == built.end:
                    kept.append(one)
                fresh = [other for other in built.free[one] if other not in seen]
                seen.update(fresh)
                stack += fresh
            closures[state] = frozenset(kept)
        return closures[state]

    placed = [[(at[a], at[b + 1], target) for a, b, target in row] for row in built.edges]
    together: dict[frozenset[int], frozenset[int]] = {}  # the closures of several targets
    numbers = {closure(start): 0}
    queue = [closure(start)]
    rows: list[Ints] = []

    def number(states: frozenset[int]) -> int:
        if states not in numbers:
            _limited(len(numbers), _MOST_SETS, "states before it is minimised")
            numbers[states] = len(numbers)
            queue.append(states)
        return numbers[states]

    for states in queue:  # it grows while we read it
        row = np.full(len(cuts) - 1, -1, dtype=np.int32)
        edges = sorted({edge for state in states for edge in placed[state]})
        if all(one[1] <= other[0] for one, other in pairwise(edges)):
            for first, last, target in edges:
                row[first:last] = number(closure(target))
        else:  # cut where an edge begins or ends; in between, the same edges apply
            for first, last in pairwise(sorted({cut for edge in edges for cut in edge[:2]})):
                those = frozenset(
                    target for begins, ends, target in edges if begins <= first and last <= ends
                )
                if those not in together:
                    together[those] = frozenset().union(*map(closure, those))
                if those:
                    row[first:last] = number(together[those])
        rows.append(row)
    accepting = np.array([built.end in states for states in queue])
    return column, np.stack(rows), accepting


def _minimal(column: Ints, table: Ints, accepting: Bools) -> ByteAutomaton:
    """The smallest automaton that accepts the same texts, without states that lead nowhere."""
    distance = distances(table, accepting)
    if distance[0] < 0:
        return ByteAutomaton(column, np.zeros((0, 1), np.int32), np.zeros(0, bool))
    live = distance >= 0
    table, accepting, distance = kept_states(table, live), accepting[live], distance[live]
    block = _blocks(table, np.unique(distance, return_inverse=True)[1])
    # Number the blocks by their first state, so that the start stays state 0.
    _, first, inverse = np.unique(block, return_index=True, return_inverse=True)
    order = np.argsort(first)
    block, first = np.argsort(order)[inverse], first[order]
    small = np.where(table[first] >= 0, block[table[first]], -1).astype(np.int32)
    if not np.array_equal(np.where(table >= 0, block[table], -1), small[block]):
        raise AssertionError("states were merged that differ: two hashes of 64 bits collided")
    return ByteAutomaton(*merged_columns(column, small), accepting[first])


def kept_states(table: Ints, kept: Bools) -> Ints:
    """The table of these states alone, numbered anew; -1 where another state would follow."""
    number = np.where(kept, np.cumsum(kept) - 1, -1)
    return np.where(table[kept] >= 0, number[table[kept]], -1).astype(np.int32)


def merged_columns(column: Ints, table: Ints) -> tuple[Ints, Ints]:
    """The same table (states, columns) with equal columns merged; `column` says which column something has."""
    known: dict[bytes, int] = {}
    new = np.array([known.setdefault(one.tobytes(), len(known)) for one in table.T], dtype=np.int32)
    first = np.unique(new, return_index=True)[1]
    return new[column], np.ascontiguousarray(table[:, first])


def _blocks(table: Ints, block: NDArray[np.intp]) -> NDArray[np.intp]:
    """Which states are equivalent, given a first partition (n,) that tells no equivalent states apart.

    Refines until the states of a block go to equal blocks under every column. After a split only the states that
    lead into the smaller parts are looked at again.
    """
    states, columns = table.shape
    random = np.random.default_rng(0)
    weight = random.integers(1, 2**63, size=columns, dtype=np.uint64)
    source_name, target_name = random.integers(1, 2**63, size=(2, states), dtype=np.uint64)  # of blocks
    incoming = _Incoming(table)
    block, count = block.astype(np.int64), int(block.max()) + 1
    signature, dirty = np.zeros(states, np.uint64), np.arange(states)
    while len(dirty):
        named = np.append(target_name[block], np.uint64(0))  # the last entry is for -1, no state
        signature[dirty] = (named[table[dirty]] * weight).sum(1, dtype=np.uint64)
        touched = np.zeros(count, bool)
        touched[block[dirty]] = True
        members = np.flatnonzero(touched[block])
        hashed = signature[members] + source_name[block[members]]
        _, first, group, sizes = np.unique(hashed, return_index=True, return_inverse=True, return_counts=True)
        # The largest group of each block keeps its number; the others get new ones.
        owner, by_size = block[members[first]], np.argsort(sizes, kind="stable")
        largest = np.full(count, -1)
        largest[owner[by_size]] = by_size  # of equal owners the last one stays
        keeps = largest[owner] == np.arange(len(owner))
        block[members] = np.where(keeps, owner, count + np.cumsum(~keeps) - 1)[group]
        count += int((~keeps).sum())
        dirty = incoming.into(members[~keeps[group]])
    return block


class _Incoming:
    """The states with an edge into a state, for tables (states, columns)."""

    def __init__(self, table: Ints) -> None:
        source, column = np.nonzero(table >= 0)
        target = table[source, column].astype(np.int64)
        pairs = np.unique(target * len(table) + source)
        target, self.sources = np.divmod(pairs, max(len(table), 1))
        self.starts = np.searchsorted(target, np.arange(len(table) + 1))

    def into(self, states: NDArray[np.intp]) -> NDArray[np.intp]:
        """The states with an edge into one of these."""
        counts = self.starts[states + 1] - self.starts[states]
        offsets = np.repeat(self.starts[states] - np.cumsum(counts) + counts, counts)
        return np.unique(self.sources[offsets + np.arange(int(counts.sum()))])


def distances(table: Ints, accepting: Bools) -> Ints:
    """The fewest steps (n,) from each state to an accepting one; -1 where there is no way."""
    incoming = _Incoming(table)
    found = np.where(accepting, 0, -1).astype(np.int32)
    level = np.flatnonzero(accepting)
    steps = 0
    while len(level):
        steps += 1
        level = incoming.into(level)
        level = level[found[level] < 0]
        found[level] = steps
    return found
