"""What a generated task is made of: a problem, its random answers, and how an output is judged."""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

TERSE = 0.07  # share of answers without steps: the floor that overflow falls to
TEST_SHARE = 64  # one prompt in so many belongs to the test split


@dataclass(frozen=True)
class Problem:
    """One question. `target` is the number asked for, or the asserts a program must pass."""

    task: str
    prompt: str
    steps: int
    target: str
    stub: str = ""  # what a completion continues
    facts: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Task:
    """A family of problems; `answer` draws one of the many right answers of a problem."""

    name: str
    draw: Callable[[Random], Problem]
    answer: Callable[[Problem, Random], str]
    is_code: bool

    def sample(self, rng: Random, *, split: str = "train") -> Problem:
        """A problem of the split. The prompt alone decides the split, so no prompt is ever in both."""
        while True:
            problem = self.draw(rng)
            if split_of(problem.prompt) == split:
                return problem


def split_of(prompt: str) -> str:
    """`test` for one prompt in 64, `train` for the rest."""
    return "test" if zlib.crc32(prompt.encode()) % TEST_SHARE == 0 else "train"


@dataclass(frozen=True)
class Manner:
    """How one answer is written: how wordy, and which phrase of each kind it likes.

    Wordiness is continuous and near its ends more often than not, so the length of an answer is smooth and
    uncertain before it begins, and its next line is predictable once two lines are there.
    """

    wordy: float
    short: int
    long: int

    def pick(self, rng: Random) -> int:
        """The phrase of the next line: 0-2 are short forms, 3-5 are long ones."""
        is_long = rng.random() < self.wordy
        liked = self.long if is_long else self.short
        form = liked if rng.random() < 0.7 else int(rng.random() * 3)
        return form + 3 * is_long


def manner(rng: Random) -> Manner:
    """Short forms are the likelier ones: a greedy decode then writes less than the average answer."""
    return Manner(rng.betavariate(0.7, 1.4), _skewed(rng), _skewed(rng))


def _skewed(rng: Random) -> int:
    """0, 1 or 2; 0 more often."""
    draw = rng.random()
    return 0 if draw < 0.6 else 1 if draw < 0.8 else 2


def weighted(rng: Random, weights: Sequence[float]) -> int:
    """An index with these probabilities (they sum to one)."""
    draw = rng.random()
    for index, weight in enumerate(weights):
        draw -= weight
        if draw < 0:
            return index
    return len(weights) - 1


def one_of(rng: Random, options: Sequence[str]) -> str:
    return options[int(rng.random() * len(options))]


def between(rng: Random, low: int, high: int) -> int:
    """An integer in [low, high]; faster than randint, which matters at two million answers."""
    return low + int(rng.random() * (high - low + 1))


NUMBER = re.compile(r"#### (-?\d+)")


def last_number(text: str) -> str | None:
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


def first_number(text: str) -> str | None:
    """For decodes that cannot stop (EOS banned): what was answered before the text ran on."""
    number = NUMBER.search(text)
    return number.group(1) if number else None


def first_function(text: str) -> str:
    """The text up to the end of its first top-level `return` line."""
    kept: list[str] = []
    for line in text.split("\n"):
        kept.append(line)
        if line.startswith("    return"):
            break
    return "\n".join(kept)
