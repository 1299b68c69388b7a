"""The tasks of the built-in model, their test problems, and the judging of single answers."""

import ast
import re
from random import Random
from typing import Any, Protocol

from voidpad.builtin.chat import CHAT
from voidpad.builtin.fills import FILL, kept
from voidpad.builtin.notes import JSON
from voidpad.builtin.numbers import EXPR, STEPS
from voidpad.builtin.problems import Problem, Task, first_function
from voidpad.builtin.programs import COMPLETE, WRITE
from voidpad.builtin.searches import SEARCH
from voidpad.builtin.turns import TURNS

# Tasks that are asked in a chat and scored. `tiny_fill` is a text with gaps; `tiny_chat`, small talk, is no benchmark.
TASKS: dict[str, Task] = {task.name: task for task in (STEPS, EXPR, COMPLETE, WRITE, JSON, SEARCH, TURNS)}
EVERY: dict[str, Task] = TASKS | {task.name: task for task in (FILL, CHAT)}
# Of the training examples.
SHARES = {
    "tiny_steps": 0.12,
    "tiny_expr": 0.09,
    "tiny_complete": 0.11,
    "tiny_write": 0.11,
    "tiny_json": 0.16,
    "tiny_fill": 0.12,
    "tiny_search": 0.14,
    "tiny_turns": 0.09,
    "tiny_chat": 0.06,
}
CANVAS = 256  # slots; a multiple of every block size we report (16, 32, 64, 128, 256)


class Runner(Protocol):
    """What judges a program: `voidpad.sandbox.Sandbox`."""

    def run(self, program: str, checks: str) -> Any: ...


def heldout(name: str, count: int, *, seed: int = 0) -> list[Problem]:
    """The first `count` different test problems of a task."""
    rng = Random(f"{name} test {seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = EVERY[name].sample(rng, split="test")
        problems.setdefault(problem.whole, problem)
    return list(problems.values())


def program(problem: Problem, text: str, *, first: bool = False) -> str | None:
    """The program a code answer stands for, or None when it is not even Python."""
    body = first_function(text) if first else text
    source = f"{problem.stub}\n{body}" if problem.stub else body
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return source


def check(problem: Problem, text: str, sandbox: Runner | None = None) -> bool:
    """Whether an answer is right. Programs are untrusted and run in the sandbox; all else needs none."""
    judge = EVERY[problem.task].right
    if not problem.target.startswith("assert "):
        assert judge is not None
        return judge(problem, text)
    if problem.gaps and not kept(problem, text):
        return False
    source = program(problem, text)
    if source is None:
        return False
    if sandbox is None:
        raise ValueError(f"task {problem.task!r} runs code: pass a sandbox.")
    return bool(sandbox.run(source, problem.target).passed)


WORD = re.compile(r"[A-Za-z]{3,}")


def copied(problem: Problem, text: str, known: frozenset[str]) -> bool:
    """Whether every word of an answer is a known one (of the tasks' own phrases) or stands in what was asked."""
    given = set(WORD.findall(problem.whole))
    return all(word in given or word in known for word in WORD.findall(text))
