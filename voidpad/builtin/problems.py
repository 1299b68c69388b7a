"""What a generated task is made of: a problem, its random answers, and how an output is judged."""

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

Option = TypeVar("Option")
TERSE = 0.06  # share of answers without steps: the floor that overflow falls to
TEST_SHARE = 64  # one prompt in so many belongs to the test split
GAP = "[[gap]]"
# What the tokenizer takes apart before it looks words up. In this order: line breaks with the indentation after them,
# step labels, numbered variables, words, digits, comment marks, strings, two-sign operators, other signs, indentation.
PIECE = r'\n *| ?\([0-9]\)| ?[vx][0-9]| ?[A-Za-z]+| ?[0-9]| *#+| ?"""| ?[-+*]=| ?[^\sA-Za-z0-9]| +'


@dataclass(frozen=True)
class Problem:
    """One question. `target` is what the judge compares with: a number, a JSON text, lines, or asserts to be run.

    `before` holds the turns of a chat before this question. For `tiny_fill`, the prompt is a text with gaps, and
    `gaps` is what one right answer has in them.
    """

    task: str
    prompt: str
    steps: int
    target: str
    stub: str = ""  # what a completion continues
    before: tuple[tuple[str, str], ...] = ()  # (question, answer)
    schema: Mapping[str, Any] | None = field(default=None, compare=False)  # JSON Schema of the answer
    gaps: tuple[str, ...] = ()
    facts: Any = field(default=None, repr=False, compare=False)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat so far, as a chat template takes it."""
        said = [pair for turn in self.before for pair in zip(("user", "assistant"), turn, strict=True)]
        return [{"role": role, "content": text} for role, text in [*said, ("user", self.prompt)]]

    @property
    def asked(self) -> str | list[dict[str, str]]:
        """What a model is given: the question, or the messages where there were turns before it."""
        return self.messages if self.before else self.prompt

    @property
    def whole(self) -> str:
        """All that is asked, in one string: it decides the split."""
        return "\n".join([*(text for turn in self.before for text in turn), self.prompt])


@dataclass(frozen=True)
class Task:
    """A family of problems. `answer` draws one of the many right answers; `right` judges those that need no sandbox."""

    name: str
    draw: Callable[[Random], Problem]
    answer: Callable[[Problem, Random], str]
    right: Callable[[Problem, str], bool] | None = None

    @property
    def is_code(self) -> bool:
        """Whether answers are programs alone, judged by running them."""
        return self.right is None

    def sample(self, rng: Random, *, split: str = "train") -> Problem:
        """A problem of the split. The prompt alone decides the split, so no prompt is ever in both."""
        while True:
            problem = self.draw(rng)
            if split_of(problem.whole) == split:
                return problem


def split_of(prompt: str) -> str:
    """`test` for one prompt in 64, `train` for the rest."""
    return "test" if zlib.crc32(prompt.encode()) % TEST_SHARE == 0 else "train"


def weighted(rng: Random, weights: Sequence[float]) -> int:
    """An index with these probabilities (they sum to one)."""
    draw = rng.random()
    for index, weight in enumerate(weights):
        draw -= weight
        if draw < 0:
            return index
    return len(weights) - 1


def one_of(rng: Random, options: Sequence[Option]) -> Option:
    return options[int(rng.random() * len(options))]


def between(rng: Random, low: int, high: int) -> int:
    """An integer in [low, high]; faster than randint, which matters at two million answers."""
    return low + int(rng.random() * (high - low + 1))


def laid_out(rng: Random, lines: Sequence[str], separator: str = " ") -> str:
    """The lines of a question: mostly one below the other, sometimes in one line, as people type them."""
    return (separator if rng.random() < 0.25 else "\n").join(lines)


Forms = tuple[str, ...]


def spelled(forms: Sequence[str], **values: Any) -> Forms:
    """Every form of a line, with these values in it."""
    return tuple(form.format(**values) for form in forms)


@dataclass(frozen=True)
class Worked:
    """All the ways to work an answer out: an opener or none, a line for each step in one of six forms, and the end."""

    lines: Sequence[Forms]
    end: str = ""
    openers: Forms = ()
    shares: Sequence[float] = ()  # of the openers

    def write(self, rng: Random) -> str:
        """One of them.

        It is more or less wordy, and likes one of the short forms (0-2 of a line) and one of the long ones (3-5).
        Wordiness is continuous and near its ends more often than not, so the length of an answer is smooth and
        uncertain before it begins, and its next line is predictable once two lines are there. Short forms are the
        likelier ones: a greedy decode then writes less than the average answer.
        """
        said = [self.openers[weighted(rng, self.shares)]] if self.openers else []
        wordy = rng.betavariate(0.7, 1.4)
        liked = [weighted(rng, (0.6, 0.2, 0.2)) for _ in ("short", "long")]
        for forms in self.lines:
            is_long = rng.random() < wordy
            form = liked[is_long] if rng.random() < 0.7 else int(rng.random() * 3)
            said.append(forms[form + 3 * is_long])
        return "\n".join(part for part in (*said, self.end) if part)

    def is_true(self, text: str) -> bool:
        """Whether a text ends with the right number and every line before it is one of the forms of its place. Places
        may be left out, none may come twice."""
        *lines, last = text.strip("\n").split("\n")
        places = iter([self.openers, *self.lines])
        right = last_number(last) == last_number(self.end)
        return right and all(any(line in forms for forms in places) for line in lines)


def last_number(text: str) -> str | None:
    numbers = re.findall(r"#### (-?\d+)", text)
    return numbers[-1] if numbers else None


def first_function(text: str) -> str:
    """The text up to the end of its first top-level `return` line."""
    kept: list[str] = []
    for line in text.split("\n"):
        kept.append(line)
        if line.startswith("    return"):
            break
    return "\n".join(kept)


def first_answer(text: str) -> str:
    """A text that cannot stop (EOS banned), up to the end of its first `####` line or of its first JSON object."""
    if text.lstrip().startswith("{"):
        try:
            _, end = json.JSONDecoder().raw_decode(text.lstrip())
        except (ValueError, RecursionError):
            return text
        return text.lstrip()[:end]
    found = re.search(r"#### [^\n]*", text)
    return text[: found.end()] if found else text
