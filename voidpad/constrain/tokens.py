"""From bytes to tokens: what each token of a vocabulary writes, and automata that read tokens.

Tokens that no state tells apart form a class, so an automaton's table has a column for each class, not for each token.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from voidpad.constrain.automaton import Bools, ByteAutomaton, Ints, distances, kept_states, merged_columns
from voidpad.constrain.patterns import ConstraintError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_known: WeakKeyDictionary[Any, tuple[int, tuple[bytes | None, ...]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of every token that is text, one after the other. Other tokens have no bytes here."""

    data: NDArray[np.uint8]
    start: NDArray[np.int64]  # (V,) where each token's bytes start in `data`
    length: NDArray[np.int64]  # (V,) 0 for tokens that are no text

    @classmethod
    def of(cls, tokens: Sequence[bytes | None], *, exclude: Iterable[int] = (), size: int = 0) -> Vocabulary:
        """A vocabulary of these tokens without the excluded ids; `size` is the network's, if it has more ids."""
        left_out = set(exclude)
        texts = [b"" if text is None or index in left_out else text for index, text in enumerate(tokens)]
        texts += [b""] * (size - len(texts))
        length = np.array([len(text) for text in texts], np.int64)
        return cls(np.frombuffer(b"".join(texts), np.uint8), np.cumsum(length) - length, length)

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def digest(self) -> str:
        """The identity of the vocabulary."""
        return hashlib.sha256(self.data.tobytes() + self.length.tobytes()).hexdigest()


def bytes_of_tokens(tokenizer: Any) -> tuple[bytes | None, ...]:
    """What each id of a fast tokenizer writes, as bytes; None for special tokens and for ids without an entry.

    Knows byte-level vocabularies (Qwen2, Llama 3 and their like), vocabularies of plain text, and byte tokens such as
    `<0x0A>` in them. A tokenizer that changes text between tokens, as SentencePiece's does with spaces, is refused.
    """
    size = len(tokenizer)
    known = _known.get(tokenizer)
    if known is not None and known[0] == size:
        return known[1]
    kinds = set(_decoders(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder")))
    if odd := kinds - {"ByteLevel", "ByteFallback", "Fuse"}:
        raise ConstraintError(
            f"this tokenizer's decoder ({', '.join(sorted(odd))}) is not supported for structured output.",
            "tokenizer",
        )
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {token for token, entry in added.items() if entry.special}
    characters = _byte_characters()
    texts: list[bytes | None] = [None] * (max(tokenizer.get_vocab().values(), default=-1) + 1)
    for name, token in tokenizer.get_vocab().items():
        if token in special:
            continue
        if token in added:
            texts[token] = added[token].content.encode()
        elif "ByteLevel" in kinds:
            texts[token] = bytes(characters[letter] for letter in name)
        elif "ByteFallback" in kinds and (match := _BYTE_TOKEN.fullmatch(name)):
            texts[token] = bytes([int(match[1], 16)])
        else:
            texts[token] = name.encode()
    _known[tokenizer] = (size, tuple(texts))
    return tuple(texts)


def _decoders(described: Any) -> list[str]:
    """The types of a tokenizer's decoders, which may be a sequence of several."""
    if described is None:
        return []
    if "decoders" in described:
        return [name for part in described["decoders"] for name in _decoders(part)]
    return [described["type"]]


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: the printable character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


@dataclass(frozen=True)
class TokenAutomaton:
    """An automaton over the tokens of one vocabulary. State 0 is the start; every state reaches an accepting one.

    Two tokens of a class lead from every state to the same state.
    """

    token_class: Ints  # (V,) the class of each token; -1 where the token is no text or leads nowhere
    table: Ints  # (states, classes) the next state; -1 where there is none
    accepting: Bools  # (states,)
    distance: Ints  # (states,) fewest tokens to an accepting state

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
    def edges(self) -> tuple[Ints, Ints]:
        """The distinct pairs of a state and a next state: sources and targets, sorted by source."""
        source, column = np.nonzero(self.table >= 0)
        pairs = np.unique(source * self.states + self.table[source, column])
        found = np.divmod(pairs, self.states)
        return found[0].astype(np.int32), found[1].astype(np.int32)

    @cached_property
    def _exact(self) -> list[Bools]:
        return [self.accepting]

    def completes_in(self, tokens: int) -> Bools:
        """The states (states,) from which exactly this many tokens lead to an accepting state."""
        source, target = self.edges
        while len(self._exact) <= tokens:
            following = np.zeros(self.states, bool)
            following[source[self._exact[-1][target]]] = True
            self._exact.append(following)
        return self._exact[tokens]

    def to_bytes(self) -> bytes:
        """The arrays as a file of numpy's."""
        buffer = io.BytesIO()
        np.savez(buffer, **asdict(self))
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> TokenAutomaton:
        """What `to_bytes` wrote."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return cls(**arrays)


def lift(automaton: ByteAutomaton, vocabulary: Vocabulary, *, name: str = "the constraint") -> TokenAutomaton:
    """The automaton over tokens whose texts are those of an automaton over bytes."""
    token_class, table = _token_classes(automaton, vocabulary)
    distance = distances(table, automaton.accepting)
    if distance[0] < 0:
        raise ConstraintError(
            f"{name}: the tokens of this model cannot write any text that matches.", "vocabulary"
        )
    reached = np.zeros(len(table), bool)
    level = np.zeros(1, np.intp)
    while len(level):
        reached[level] = True
        level = np.unique(table[level])
        level = level[(level >= 0) & ~reached[level]]
    kept = reached & (distance >= 0)
    token_class, table = merged_columns(token_class, kept_states(table, kept))
    # Class 0 leads nowhere.
    return TokenAutomaton(token_class - 1, table[:, 1:].copy(), automaton.accepting[kept], distance[kept])


def _token_classes(automaton: ByteAutomaton, vocabulary: Vocabulary) -> tuple[Ints, Ints]:
    """The class of each token and the table (states, classes); class 0 leads nowhere.

    A text acts on the automaton as a map from states to states. Few maps occur: we number them, and find the map of a
    longer text by applying one more byte to the map of its beginning, once for each map and column of bytes. All
    tokens advance byte by byte together.
    """
    columns = automaton.table.shape[1]
    states = np.arange(len(automaton.table), dtype=np.int32)
    # A map holds the states from which the text leads on, and where to. Number 0 leads nowhere, 1 changes nothing.
    maps: list[tuple[Ints, Ints]] = [(states[:0], states[:0]), (states, states)]
    numbers: dict[bytes, int] = {b"": 0}
    following: dict[int, int] = {}  # map * columns + column -> map

    def applied(key: int) -> int:
        source, target = maps[key // columns]
        reached = automaton.table[target, key % columns]
        source, reached = source[reached >= 0], reached[reached >= 0]
        number = numbers.setdefault(source.tobytes() + reached.tobytes(), len(maps))
        if number == len(maps):
            maps.append((source, reached))
        return number

    current = np.where(vocabulary.length > 0, 1, 0)
    for position in range(int(vocabulary.length.max(initial=0))):
        active = np.flatnonzero((vocabulary.length > position) & (current > 0))
        column = automaton.column[vocabulary.data[vocabulary.start[active] + position]]
        keys, inverse = np.unique(current[active] * columns + column, return_inverse=True)
        for key in keys.tolist():
            if key not in following:
                following[key] = applied(key)
        current[active] = np.array([following[key] for key in keys.tolist()], np.int64)[inverse]
    used, token_class = np.unique(np.append(current, 0), return_inverse=True)
    table = np.full((len(states), len(used)), -1, np.int32)
    for index, number in enumerate(used.tolist()):
        source, reached = maps[number]
        table[source, index] = reached
    return token_class[:-1].astype(np.int32), table
