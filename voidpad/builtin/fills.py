"""`tiny_fill`: a program or a worked note with one or more gaps. What stands around a gap says what is missing.

A gap is a line, several lines, or a span of a line. Programs are run against asserts; notes are judged as a whole by
the task that they come from, so any right filling counts, not only the one that was cut out.
"""

import re
from collections.abc import Sequence
from random import Random

from voidpad.builtin.notes import JSON
from voidpad.builtin.numbers import EXPR, STEPS
from voidpad.builtin.problems import GAP, PIECE, Problem, Task, between, weighted
from voidpad.builtin.programs import COMPLETE, WRITE
from voidpad.builtin.searches import SEARCH

NOTES = {task.name: task for task in (STEPS, EXPR, SEARCH, JSON)}
Span = tuple[int, int]  # of characters


def _code(rng: Random) -> tuple[str, int, Problem]:
    """A program with a description of every step, where its body begins, and the problem that it solves."""
    task = COMPLETE if rng.random() < 0.55 else WRITE
    while True:
        problem = task.draw(rng)
        written = task.answer(problem, rng)
        if task is COMPLETE and "v1" in written and "def " not in written:
            return f"{problem.stub}\n{written}", len(problem.stub) + 1, problem
        if task is WRITE and "x1" in written:
            head = "# " + problem.prompt.replace("\n", "\n# ") + "\n"
            return head + written, len(head), problem


def _note(rng: Random) -> tuple[str, int, Problem]:
    """A question with its answer written out, where the answer begins, and the problem."""
    task = [*NOTES.values()][weighted(rng, (0.3, 0.15, 0.15, 0.4))]
    while True:
        problem = task.draw(rng)
        written = task.answer(problem, rng)
        if len(written) > 16:
            return f"{problem.prompt}\n{written}", len(problem.prompt) + 1, problem


def _lines(text: str, begin: int) -> list[Span]:
    """Where the lines after `begin` stand, without their indentation. A program's lines of comments are left out."""
    found = []
    for match in re.finditer(r"[^\n]+", text[begin:]):
        line = match[0]
        indent = len(line) - len(line.lstrip(" "))
        if not line.lstrip(" ").startswith(("#", '"""')) or line.startswith("####"):
            found.append((begin + match.start() + indent, begin + match.end()))
    return found


def _span(rng: Random, text: str, line: Span) -> Span:
    """Some pieces of a line, of a program's line without its comment."""
    end = text.find("  #", *line)
    end = line[1] if end < 0 else end
    cuts = [line[0], *(line[0] + match.end() for match in re.finditer(PIECE, text[line[0] : end]))]
    cuts = [cut for cut in cuts if cut <= end]
    if len(cuts) < 3:
        return line[0], end
    size = min(len(cuts) - 1, 1 + int(rng.random() ** 2 * 16))
    first = between(rng, 0, len(cuts) - 1 - size)
    return cuts[first], cuts[first + size]


def draw(rng: Random) -> Problem:
    is_code = rng.random() < 0.6
    text, begin, inner = _code(rng) if is_code else _note(rng)
    lines = _lines(text, begin)
    kind = weighted(rng, (0.35, 0.15, 0.5))
    if kind == 1 and len(lines) > 2:  # several lines, with comments between them
        first = between(rng, 0, len(lines) - 2)
        spans = [(lines[first][0], lines[min(len(lines) - 1, first + between(rng, 1, 2))][1])]
    else:
        wanted = min(len(lines), 1 + weighted(rng, (0.65, 0.25, 0.1)))
        chosen = sorted(rng.sample(range(len(lines)), wanted))
        spans = [lines[k] if kind == 0 and len(lines) > 1 else _span(rng, text, lines[k]) for k in chosen]
    fixed, place = [], 0
    for first, last in spans:
        fixed.append(text[place:first])
        place = last
    gaps = tuple(text[first:last] for first, last in spans)
    target = inner.target if is_code else ""
    prompt = GAP.join([*fixed, text[place:]])
    return Problem("tiny_fill", prompt, len(gaps), target, gaps=gaps, facts=(inner, begin))


def filled(problem: Problem, gaps: Sequence[str]) -> str:
    """The whole text with these gaps."""
    parts = problem.prompt.split(GAP)
    return parts[0] + "".join(gap + part for gap, part in zip(gaps, parts[1:], strict=True))


def answer(problem: Problem, rng: Random) -> str:
    return filled(problem, problem.gaps)


def kept(problem: Problem, text: str) -> bool:
    """Whether the text is the prompt with something in its gaps."""
    pattern = ".*?".join(map(re.escape, problem.prompt.split(GAP)))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def right(problem: Problem, text: str) -> bool:
    """Of notes: what was fixed is there, and the answer as a whole is right."""
    inner, begin = problem.facts
    judge = NOTES[inner.task].right
    return judge is not None and kept(problem, text) and judge(inner, text[begin:])


FILL = Task("tiny_fill", draw, answer, right)
