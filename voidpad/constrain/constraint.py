"""Constraints: what an answer must look like, and their automata over the tokens of a vocabulary.

`choice`, `regex`, `json_schema` and `json_object` make a constraint, a plain value. `compile_constraint` turns it into
a `TokenAutomaton` for one vocabulary and keeps that on disk. Tokens that no state tells apart form a class, so the
automaton's table has a column for each class, not for each token.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from voidpad.constrain.automaton import Bools, ByteAutomaton, Ints, automaton_of, distances
from voidpad.constrain.json_schema import DEFAULT_DEPTH, object_pattern, schema_pattern
from voidpad.constrain.patterns import ConstraintError, Pattern, one_of, parse
from voidpad.constrain.vocabulary import Vocabulary
from voidpad.files import atomic_file

_EDITION = 1  # of the compiler; a new one makes stored automata useless
_MOST_FILES = 500  # automata kept on disk
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
        short = self.source if len(self.source) <= 60 else f"{self.source[:57]}..."
        return f"{self.kind} {short}"


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
    if not isinstance(expression, str):
        raise ConstraintError(f"regex: {expression!r:.60} is no text.", "regex")
    parse(expression)
    return Constraint("regex", json.dumps(expression))


def json_schema(schema: Any) -> Constraint:
    """The answer is the JSON text of a value that a schema allows: a dict, JSON text, or a pydantic model class.

    Parts are separated by `, ` and `: `, properties stand in the order of the schema.
    """
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"json_schema: is no JSON ({error}).", "json_schema") from None
    if not isinstance(schema, Mapping):
        raise ConstraintError(
            f"json_schema: {schema!r:.60} is neither a dict nor a pydantic model class.", "json_schema"
        )
    try:
        source = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"json_schema: is no JSON value ({error!s:.100}).", "json_schema") from None
    schema_pattern(schema)
    return Constraint("json_schema", source)


def json_object(depth: int = DEFAULT_DEPTH) -> Constraint:
    """The answer is a JSON object, any one whose objects and arrays are nested at most `depth` deep."""
    object_pattern(depth)
    return Constraint("json_object", json.dumps(depth))


@dataclass(frozen=True)
class TokenAutomaton:
    """An automaton over the tokens of one vocabulary. State 0 is the start.

    Two tokens of a class lead from every state to the same state. Edges are the distinct pairs (state, next state),
    sorted by state. An edge is taken by a set of classes; equal sets are stored once.
    """

    token_class: Ints  # (V,) the class of each token; -1 where the token is no text or leads nowhere
    table: Ints  # (states, classes) the next state; -1 where there is none
    accepting: Bools  # (states,)
    distance: Ints  # (states,) fewest tokens to an accepting state
    source: Ints  # (edges,)
    target: Ints  # (edges,)
    edge_set: Ints  # (edges,) the set of classes that take the edge
    set_start: Ints  # (sets + 1,) where the classes of each set start in `set_class`
    set_class: Ints

    @property
    def states(self) -> int:
        return len(self.table)

    @property
    def classes(self) -> int:
        return int(self.table.shape[1])

    @property
    def shortest(self) -> int:
        """The fewest tokens of a text that matches."""
        return int(self.distance[0])

    def state_after(self, tokens: Iterable[int]) -> int:
        """The state after these tokens; -1 where they begin no matching text."""
        state = 0
        for token in tokens:
            column = int(self.token_class[token]) if token < len(self.token_class) else -1
            if column < 0 or state < 0:
                return -1
            state = int(self.table[state, column])
        return state

    @cached_property
    def _exact(self) -> list[Bools]:
        return [self.accepting]

    def completes_in(self, tokens: int) -> Bools:
        """The states (states,) from which exactly this many tokens lead to an accepting state."""
        while len(self._exact) <= tokens:
            following = np.zeros(self.states, bool)
            following[self.source[self._exact[-1][self.target]]] = True
            self._exact.append(following)
        return self._exact[tokens]

    def to_bytes(self) -> bytes:
        """The arrays as a file of numpy's."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> TokenAutomaton:
        """What `to_bytes` wrote."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def compile_constraint(
    constraint: Constraint, vocabulary: Vocabulary, *, folder: Path | None = None
) -> TokenAutomaton:
    """The automaton of a constraint over a vocabulary, from the cache on disk where it is there.

    `folder` holds the cache, `cache_folder()` by default. A constraint whose texts the vocabulary cannot write is
    refused.
    """
    place = (folder or cache_folder()) / f"{cache_key(constraint, vocabulary)}.npz"
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        automaton = TokenAutomaton.from_bytes(place.read_bytes())
        with suppress(OSError):
            os.utime(place)  # the least recently used file leaves first
        return automaton
    automaton = lift(constraint.automaton(), vocabulary, name=str(constraint))
    store_compiled(place, automaton)
    return automaton


def store_compiled(place: Path, automaton: TokenAutomaton) -> None:
    """Keep an automaton on disk. A folder that cannot be written only costs time at the next call."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(place) as draft:
            draft.write_bytes(automaton.to_bytes())
        files = sorted(place.parent.glob("*.npz"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_MOST_FILES]:
            path.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where compiled constraints are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home) / "voidpad" / "constraints"


def cache_key(constraint: Constraint, vocabulary: Vocabulary) -> str:
    """The name under which the automaton of a constraint over a vocabulary is kept."""
    parts = json.dumps([_EDITION, constraint.kind, constraint.source, vocabulary.digest])
    return hashlib.sha256(parts.encode()).hexdigest()


# From bytes to tokens


def lift(automaton: ByteAutomaton, vocabulary: Vocabulary, *, name: str = "the constraint") -> TokenAutomaton:
    """The automaton over tokens whose texts are those of an automaton over bytes."""
    token_class, table = _token_classes(automaton, vocabulary)
    distance = distances(table, automaton.accepting)
    if not len(distance) or distance[0] < 0:
        raise ConstraintError(
            f"{name}: the tokens of this model cannot write any text that matches.", "vocabulary"
        )
    kept = _reachable(table) & (distance >= 0)
    number = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    table = np.where(table[kept] >= 0, number[table[kept]], -1).astype(np.int32)
    token_class, table = _merged_classes(token_class, table)
    return TokenAutomaton(token_class, table, automaton.accepting[kept], distance[kept], *_edges(table))


def _token_classes(automaton: ByteAutomaton, vocabulary: Vocabulary) -> tuple[Ints, Ints]:
    """The class of each token and the table (states, classes).

    A text acts on the automaton as a map from states to states. Few maps occur: we number them, and find the map of a
    longer text by applying one more byte to the map of its beginning, once for each map and column of bytes. All
    tokens advance byte by byte together. Map 0 changes nothing; -1 is the map that leads nowhere.
    """
    columns = automaton.table.shape[1]
    everything = np.arange(len(automaton.table), dtype=np.int32)
    maps: list[tuple[Ints, Ints]] = [
        (everything, everything)
    ]  # states from which the text leads on, and where to
    numbers: dict[bytes, int] = {}
    following: dict[int, int] = {}  # map * columns + column -> map

    def applied(key: int) -> int:
        source, target = maps[key // columns]
        reached = automaton.table[target, key % columns]
        alive = reached >= 0
        source, reached = source[alive], reached[alive]
        if not len(source):
            return -1
        content = source.tobytes() + reached.tobytes()
        if content not in numbers:
            numbers[content] = len(maps)
            maps.append((source, reached))
        return numbers[content]

    current = np.where(vocabulary.length > 0, 0, -1).astype(np.int64)
    position = 0
    while True:
        active = np.flatnonzero((vocabulary.length > position) & (current >= 0))
        if not len(active):
            break
        column = automaton.column[vocabulary.data[vocabulary.start[active] + position]]
        keys, inverse = np.unique(current[active] * columns + column, return_inverse=True)
        for key in keys.tolist():
            if key not in following:
                following[key] = applied(key)
        current[active] = np.array([following[key] for key in keys.tolist()])[inverse]
        position += 1
    used = np.unique(current[current >= 0])
    table = np.full((len(automaton.table), len(used)), -1, np.int32)
    for index, number in enumerate(used.tolist()):
        source, reached = maps[number]
        table[source, index] = reached
    token_class = np.where(current >= 0, np.searchsorted(used, current), -1).astype(np.int32)
    return token_class, table


def _reachable(table: Ints) -> Bools:
    """The states (n,) that can be reached from state 0."""
    found = np.zeros(len(table), bool)
    found[0] = True
    level = np.zeros(1, np.intp)
    while len(level):
        targets = np.unique(table[level])
        level = targets[(targets >= 0) & ~found[targets]].astype(np.intp)
        found[level] = True
    return found


def _merged_classes(token_class: Ints, table: Ints) -> tuple[Ints, Ints]:
    """Classes with equal columns as one, and no class that leads nowhere."""
    known: dict[bytes, int] = {}
    kept: list[int] = []
    new = np.full(table.shape[1] + 1, -1, np.int32)  # the last entry is for tokens without a class
    for index, column in enumerate(np.ascontiguousarray(table.T)):
        if (column < 0).all():
            continue
        content = column.tobytes()
        if content not in known:
            known[content] = len(kept)
            kept.append(index)
        new[index] = known[content]
    return new[token_class], np.ascontiguousarray(table[:, kept])


def _edges(table: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Source, target and set of each edge; where each set's classes start, and the classes."""
    source, target, sets = [], [], []
    known: dict[bytes, int] = {}
    contents: list[Ints] = []
    for state, row in enumerate(table):
        classes = np.flatnonzero(row >= 0)
        order = classes[np.argsort(row[classes], kind="stable")].astype(np.int32)
        cuts = np.flatnonzero(np.diff(row[order])) + 1
        for group in np.split(order, cuts) if len(order) else []:
            content = group.tobytes()
            if content not in known:
                known[content] = len(contents)
                contents.append(group)
            source.append(state)
            target.append(int(row[group[0]]))
            sets.append(known[content])
    starts = np.append(0, np.cumsum([len(content) for content in contents]))
    numbers = [np.array(part, np.int32) for part in (source, target, sets, starts)]
    everything = np.concatenate(contents) if contents else np.zeros(0, np.int32)
    return numbers[0], numbers[1], numbers[2], numbers[3], everything
