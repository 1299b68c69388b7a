"""The built-in model's four tasks: their items are made, not read, and the same for everybody."""

from functools import cache
from pathlib import Path

from voidpad.builtin.problems import Problem, first_number, last_number
from voidpad.builtin.tasks import heldout, program
from voidpad.evaluate.tasks.benchmark_files import Splits, indexed
from voidpad.evaluate.tasks.graders import Doc, each

ITEMS = 500
NOT_PYTHON = "raise SyntaxError('the answer is not Python')"
INVALID = "[invalid]"


@cache
def _made(name: str) -> Splits:
    """The first held-out problems of a task."""
    kept = ("task", "prompt", "steps", "target", "stub")
    problems = heldout(name, ITEMS)
    return {"test": indexed({key: getattr(problem, key) for key in kept} for problem in problems)}


def steps(folder: Path | None = None) -> Splits:
    return _made("tiny_steps")


def expr(folder: Path | None = None) -> Splits:
    return _made("tiny_expr")


def complete(folder: Path | None = None) -> Splits:
    return _made("tiny_complete")


def write(folder: Path | None = None) -> Splits:
    return _made("tiny_write")


def _problem_of(doc: Doc) -> Problem:
    return Problem(doc["task"], doc["prompt"], doc["steps"], doc["target"], doc["stub"])


def score(doc: Doc, answers: list[str]) -> dict[str, float]:
    return {"exact_match": float(answers[0] == doc["target"])}


# "last" is what the paper's graders do; "first" judges decodes that cannot stop (EOS banned).
last_number_filter = each(lambda text, doc: last_number(text) or INVALID, lambda reason: INVALID)
first_number_filter = each(lambda text, doc: first_number(text) or INVALID, lambda reason: INVALID)
last_program_filter = each(
    lambda text, doc: program(_problem_of(doc), text) or NOT_PYTHON, lambda reason: NOT_PYTHON
)
first_program_filter = each(
    lambda text, doc: program(_problem_of(doc), text, first=True) or NOT_PYTHON, lambda reason: NOT_PYTHON
)
