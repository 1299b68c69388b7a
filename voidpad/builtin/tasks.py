"""The tasks of the built-in model, their test problems, and the judging of single answers."""

import ast
from random import Random
from typing import Any

from voidpad.builtin.fills import FILL, kept
from voidpad.builtin.notes import JSON
from voidpad.builtin.numbers import EXPR, STEPS
from voidpad.builtin.problems import Problem, Task, first_function
from voidpad.builtin.programs import COMPLETE, WRITE
from voidpad.builtin.searches import SEARCH
from voidpad.builtin.turns import TURNS

TASKS: dict[str, Task] = {task.name: task for task in (STEPS, EXPR, COMPLETE, WRITE, JSON, SEARCH, TURNS)}
EVERY: dict[str, Task] = TASKS | {FILL.name: FILL}  # TASKS are asked in a chat; FILL is a text with gaps
CANVAS = 256  # slots; a multiple of every block size we report (16, 32, 64, 128, 256)


def heldout(task: str | Task, count: int) -> list[Problem]:
    """The first `count` different test problems of a task."""
    task = EVERY[task] if isinstance(task, str) else task
    rng = Random(f"{task.name} test 0")
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = task.sample(rng, split="test")
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


def check(problem: Problem, text: str, sandbox: Any = None) -> bool:
    """Whether an answer is right: the one judge of all built-in tasks.

    Programs are untrusted and run in a `voidpad.sandbox.Sandbox`; all else needs none.
    """
    judge = EVERY[problem.task].right
    if judge and not problem.target.startswith("assert "):
        return judge(problem, text)
    if problem.gaps and not kept(problem, text):
        return False
    source = program(problem, text)
    if source is None:
        return False
    if sandbox is None:
        raise ValueError(f"task {problem.task!r} runs code: pass a sandbox.")
    return bool(sandbox.run(source, problem.target).passed)
