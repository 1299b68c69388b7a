"""The four tasks of the built-in model, their test problems, and the judging of single answers."""

import ast
from random import Random
from typing import Any, Protocol

from voidpad.builtin.numbers import EXPR, STEPS
from voidpad.builtin.problems import Problem, Task, first_function, last_number
from voidpad.builtin.programs import COMPLETE, WRITE

TASKS: dict[str, Task] = {task.name: task for task in (STEPS, EXPR, COMPLETE, WRITE)}
CANVAS = 192  # slots; a multiple of every block size we report (16, 32, 64, 192)


class Runner(Protocol):
    """What judges a program: `voidpad.sandbox.Sandbox`."""

    def run(self, program: str, checks: str) -> Any: ...


def heldout(name: str, count: int, *, seed: int = 0) -> list[Problem]:
    """The first `count` different test problems of a task."""
    rng = Random(f"{name} test {seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = TASKS[name].sample(rng, split="test")
        problems.setdefault(problem.prompt, problem)
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
    """Whether an answer is right. Programs are untrusted and run in the sandbox; numbers need none."""
    if not TASKS[problem.task].is_code:
        return last_number(text) == problem.target
    source = program(problem, text)
    if source is None:
        return False
    if sandbox is None:
        raise ValueError(f"task {problem.task!r} runs code: pass a sandbox.")
    return bool(sandbox.run(source, problem.target).passed)
