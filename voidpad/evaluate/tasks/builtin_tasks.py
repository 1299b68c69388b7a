"""The built-in model's tasks: their items are made, not read, and the same for everybody."""

from functools import cache
from pathlib import Path

from voidpad.builtin.problems import Problem, first_answer
from voidpad.builtin.tasks import check, heldout, program
from voidpad.evaluate.tasks import Splits, split_of
from voidpad.evaluate.tasks.graders import Doc, each, no_program

ITEMS = 500


@cache
def _problems(task: str) -> list[Problem]:
    """The first held-out problems of a task."""
    return heldout(task, ITEMS)


def items(folder: Path | None = None, *, task: str) -> Splits:
    kept = ("task", "prompt", "steps", "target", "stub")
    made = [{key: getattr(one, key) for key in kept} for one in _problems(task)]
    return {"test": split_of({**item, "item": number} for number, item in enumerate(made))}


def problem_of(doc: Doc) -> Problem:
    """The problem that an item was made from; it knows more than the item says."""
    return _problems(doc["task"])[doc["item"]]


def score(doc: Doc, answers: list[str]) -> dict[str, float]:
    """Whether the whole answer is right, names and things included."""
    return {"exact_match": float(check(problem_of(doc), answers[0]))}


def last_program(text: str, doc: Doc) -> str:
    return program(problem_of(doc), text) or no_program("it is not Python")


def first_program(text: str, doc: Doc) -> str:
    return program(problem_of(doc), text, first=True) or no_program("it is not Python")


# "last" judges the answer as it is; "first" judges decodes that cannot stop (EOS banned) by what came first.
first_answer_filter = each(lambda text, doc: first_answer(text), lambda reason: "[invalid]")
last_program_filter = each(last_program, no_program)
first_program_filter = each(first_program, no_program)
