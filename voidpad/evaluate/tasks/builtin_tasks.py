"""The built-in model's tasks: their items are made, not read, and the same for everybody."""

from functools import cache, partial
from pathlib import Path

from voidpad.builtin.problems import Problem, first_answer
from voidpad.builtin.tasks import check, heldout, program
from voidpad.evaluate.tasks import Doc, Splits, split_of
from voidpad.evaluate.tasks.graders import no_program

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


# "last" judges the answer as it is; "first" judges decodes that cannot stop (EOS banned) by what came first.
# Filters of lm-eval: every item has a list of one answer.


def first_answer_filter(answers: list[list[str]], docs: list[Doc]) -> list[str]:
    return [first_answer(text) for [text] in answers]


def last_program_filter(answers: list[list[str]], docs: list[Doc], *, first: bool = False) -> list[str]:
    programs = [
        program(problem_of(doc), text, first=first) for [text], doc in zip(answers, docs, strict=True)
    ]
    return [one or no_program("it is not Python") for one in programs]


first_program_filter = partial(last_program_filter, first=True)
