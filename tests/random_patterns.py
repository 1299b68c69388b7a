"""Random regular expressions, random texts of an automaton and a small vocabulary, for tests of constraints."""

import random

import numpy as np

LETTERS = 'ab01 {}":,\\\n-_é中😀'


def random_expression(draw: random.Random, depth: int = 3) -> str:
    """A regular expression of our dialect. Repetitions are not nested, so that `re` never takes exponential time."""
    return _alternatives(draw, depth, loops=True)


def _alternatives(draw: random.Random, depth: int, *, loops: bool) -> str:
    count = draw.choice((1, 1, 1, 2, 3))
    return "|".join(_sequence(draw, depth, loops=loops) for _ in range(count))


def _sequence(draw: random.Random, depth: int, *, loops: bool) -> str:
    return "".join(
        _quantified(draw, depth, loops=loops) for _ in range(draw.randint(0 if depth < 3 else 1, 4))
    )


def _quantified(draw: random.Random, depth: int, *, loops: bool) -> str:
    if not loops or draw.random() < 0.5:
        return _atom(draw, depth, loops=loops)
    most = draw.randint(0, 4)
    quantifier = draw.choice(
        ("*", "+", "?", "*?", f"{{{most}}}", f"{{{most},}}", f"{{{min(1, most)},{most}}}")
    )
    return _atom(draw, depth, loops=False) + quantifier


def _atom(draw: random.Random, depth: int, *, loops: bool) -> str:
    kind = draw.random()
    if depth and kind < 0.25:
        return f"({draw.choice(('', '?:'))}{_alternatives(draw, depth - 1, loops=loops)})"
    if kind < 0.4:
        # The complements have hundreds of ranges and large automata: they come seldom.
        return draw.choice((".", r"\d", r"\w", r"\s") * 3 + (r"\D", r"\W", r"\S"))
    if kind < 0.6:
        members = "".join(_escaped(draw.choice(LETTERS)) for _ in range(draw.randint(1, 3)))
        extra = draw.choice(
            ("", "", "a-f", "0-9", r"\d", "à-ö", *([r"\w", r"\D"] if draw.random() < 0.2 else []))
        )
        return f"[{draw.choice(('', '^'))}{members}{extra}]"
    return _escaped(draw.choice(LETTERS))


def _escaped(letter: str) -> str:
    return f"\\{letter}" if letter in r".^$*+?{}[]\|()-" else letter


def random_text(draw: random.Random, automaton, longest: int = 40) -> bytes | None:
    """A text that the automaton over bytes accepts, by a random walk; None if the walk takes too long."""
    state, text = 0, b""
    members = [np.flatnonzero(automaton.column == column) for column in range(automaton.table.shape[1])]
    while True:
        moves = np.flatnonzero(automaton.table[state] >= 0)
        if automaton.accepting[state] and (not len(moves) or draw.random() < 0.25):
            return text
        if len(text) > longest:
            return None
        column = draw.choice(moves.tolist())
        text += bytes([draw.choice(members[column].tolist())])
        state = int(automaton.table[state, column])


def changed(draw: random.Random, text: str) -> str:
    """The text with one character dropped, doubled, replaced or added."""
    place = draw.randint(0, len(text))
    letter = draw.choice(LETTERS)
    return draw.choice(
        (
            text[:place] + letter + text[place:],
            text[:place] + text[place + 1 :],
            text[:place] + letter + text[place + 1 :],
        )
    )


def byte_tokens(*words: str) -> list[bytes]:
    """A vocabulary that can write every text: all bytes, then these words."""
    return [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in words)]
