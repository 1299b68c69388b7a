"""The built-in model's tasks: their items are made, not read, and the same for everybody."""

from functools import cache
from pathlib import Path

from voidpad.builtin.problems import Problem, first_answer
from voidpad.builtin.tasks import check, heldout, program
from voidpad.evaluate.tasks.benchmark_files import ITEM, Splits, indexed
from voidpad.evaluate.tasks.graders import Doc, each

ITEMS = 500
NOT_PYTHON = "raise SyntaxError('the answer is not Python')"
INVALID = "[invalid]"


@cache
def _problems(name: str) -> list[Problem]:
    """The first held-out problems of a task."""
    return heldout(name, ITEMS)


def _made(name: str) -> Splits:
    kept = ("task", "prompt", "steps", "target", "stub")
    return {"test": indexed({key: getattr(one, key) for key in kept} for one in _problems(name))}


def steps(folder: Path | None = None) -> Splits:
    return _made("tiny_steps")


def expr(folder: Path | None = None) -> Splits:
    return _made("tiny_expr")


def complete(folder: Path | None = None) -> Splits:
    return _made("tiny_complete")


def write(folder: Path | None = None) -> Splits:
    return _made("tiny_write")


def notes(folder: Path | None = None) -> Splits:
    return _made("tiny_json")


def search(folder: Path | None = None) -> Splits:
    return _made("tiny_search")


def problem_of(doc: Doc) -> Problem:
    """The problem that an item was made from; it knows more than the item says."""
    return _problems(doc["task"])[doc[ITEM]]


def score(doc: Doc, answers: list[str]) -> dict[str, float]:
    """Whether the whole answer is right, names and things included."""
    return {"exact_match": float(check(problem_of(doc), answers[0]))}


# "last" judges the answer as it is; "first" judges decodes that cannot stop (EOS banned) by what came first.
last_answer_filter = each(lambda text, doc: text, lambda reason: INVALID)
first_answer_filter = each(lambda text, doc: first_answer(text), lambda reason: INVALID)
last_program_filter = each(
    lambda text, doc: program(problem_of(doc), text) or NOT_PYTHON, lambda reason: NOT_PYTHON
)
first_program_filter = each(
    lambda text, doc: program(problem_of(doc), text, first=True) or NOT_PYTHON, lambda reason: NOT_PYTHON
)
