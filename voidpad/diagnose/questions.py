"""Prompts to decode, each with a way to tell whether an answer is right, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from voidpad.errors import ConfigError
from voidpad.models import Model
from voidpad.training.padding import Example, Pairs


@dataclass(frozen=True)
class Question:
    prompt: Any  # text or messages
    right: Callable[[str], bool] | None = None


def with_number(prompt: Any, answer: str) -> Question:
    """Right is an answer whose last number is the reference's, as GSM8K is graded."""
    from voidpad.evaluate.tasks.gsm8k import bare, flexible_extract

    target = bare(flexible_extract(bare(answer)))
    return Question(prompt, lambda text: bare(flexible_extract(text)) == target)


def of_tasks(names: Sequence[str], count: int) -> list[Question]:
    """The first test problems of the built-in tasks, by turns. Programs are not judged: that needs a sandbox."""
    from voidpad.builtin.tasks import TASKS, check, heldout

    tasks = task_names(names)
    each = [heldout(name, -(-count // len(tasks))) for name in tasks]
    problems = [problem for group in zip(*each, strict=True) for problem in group][:count]
    judges = [None if TASKS[problem.task].is_code else partial(check, problem) for problem in problems]
    return [Question(problem.prompt, judge) for problem, judge in zip(problems, judges, strict=True)]


def task_names(names: Sequence[str]) -> list[str]:
    """Names of built-in tasks; the prefix `tiny_` may be left out."""
    from voidpad.builtin.tasks import TASKS

    full = [name if name.startswith("tiny_") else f"tiny_{name}" for name in names]
    if not full:
        raise ConfigError(f"tasks: none given; use some of {', '.join(TASKS)}.")
    if unknown := [name for name in full if name not in TASKS]:
        raise ConfigError(f"task {unknown[0]!r} is unknown; use {', '.join(TASKS)}.")
    return full


def speaks_tiny(model: Model) -> bool:
    """Whether this model has the built-in vocabulary, so that the built-in tasks mean something to it."""
    from voidpad.builtin.tokenizer import tokenizer

    return model.tokenizer.get_vocab() == tokenizer().get_vocab()


def task_pairs(names: Sequence[str], count: int) -> Pairs:
    """Training examples of the built-in tasks, one answer a prompt; answers that fill the canvas are left out."""
    from voidpad.builtin.tasks import CANVAS, TASKS
    from voidpad.builtin.tokenizer import tokenizer, wrap

    rng, tasks, words = Random("analyze 0"), task_names(names), tokenizer().backend_tokenizer
    rows: list[Example] = []
    while len(rows) < count:
        task = TASKS[tasks[len(rows) % len(tasks)]]
        problem = task.sample(rng)
        prompt, answer = (
            words.encode(text).ids for text in (wrap(problem.prompt), task.answer(problem, rng))
        )
        if len(answer) < CANVAS:
            rows.append(Example(prompt, answer))
    return Pairs.of(rows)


def task_lengths(name: str, index: int, draws: int) -> tuple[str, list[int]]:
    """A test problem's prompt and the lengths of many answers drawn for it: what its own F is made of."""
    from voidpad.builtin.tasks import TASKS, heldout
    from voidpad.builtin.tokenizer import tokenizer

    problem = heldout(name, index + 1)[index]
    rng = Random(f"{name} {index}")
    encode = tokenizer().backend_tokenizer.encode_batch
    texts = [TASKS[name].answer(problem, rng) for _ in range(draws)]
    return problem.prompt, [len(one.ids) for one in encode(texts)]
