"""What analyses run on: prompts with a way to judge their answers, and examples of prompts with answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from voidpad.errors import ConfigError, DataError
from voidpad.models import Checkpoint
from voidpad.training.prepared import Example, Pairs

Judge = Callable[[str], bool] | None  # says whether an answer is right, where anybody can tell


@dataclass(frozen=True)
class Question:
    prompt: Any  # text or messages
    right: Judge = None


def with_number(prompt: Any, answer: str) -> Question:
    """Right is an answer whose last number is the reference's, as GSM8K is graded."""
    from voidpad.evaluate.tasks.gsm8k import final_number

    target = final_number(answer.rpartition("#### ")[2])
    return Question(prompt, lambda text: final_number(text) == target)


# The tasks of the built-in models.


def has_builtin_vocab(model: Checkpoint) -> bool:
    """Whether this model has the built-in vocabulary, so that the built-in tasks mean something to it."""
    from voidpad.builtin.tokenizer import tokenizer

    return model.tokenizer.get_vocab() == tokenizer().get_vocab()


def task_names(names: Sequence[str]) -> list[str]:
    """Names of built-in tasks, all of them if none is given; the prefix `tiny_` may be left out.

    The task of filling gaps is none of them: its answers have no end to be found.
    """
    from voidpad.builtin.tasks import TASKS

    full = [name if name.startswith("tiny_") else f"tiny_{name}" for name in names] or list(TASKS)
    if unknown := [name for name in full if name not in TASKS]:
        raise ConfigError(f"task {unknown[0]!r} cannot be analysed; use some of {', '.join(TASKS)}.")
    return full


def of_tasks(names: Sequence[str], count: int) -> list[Question]:
    """The first test problems of the built-in tasks, by turns. Programs are not judged: that needs a sandbox."""
    from voidpad.builtin.tasks import TASKS, check, heldout

    tasks = task_names(names)
    each = [heldout(name, -(-count // len(tasks))) for name in tasks]
    problems = [problem for group in zip(*each, strict=True) for problem in group][:count]
    judges = [None if TASKS[problem.task].is_code else partial(check, problem) for problem in problems]
    return [Question(problem.asked, judge) for problem, judge in zip(problems, judges, strict=True)]


def task_pairs(names: Sequence[str], count: int) -> Pairs:
    """Training examples of the built-in tasks, one answer a prompt; answers that fill the canvas are left out."""
    from voidpad.builtin.tasks import CANVAS, TASKS
    from voidpad.builtin.tokenizer import tokenizer, wrap

    rng, tasks, words = Random("analyze 0"), task_names(names), tokenizer().backend_tokenizer
    rows: list[Example] = []
    while len(rows) < count:
        task = TASKS[tasks[len(rows) % len(tasks)]]
        problem = task.sample(rng)
        prompt, answer = (words.encode(text).ids for text in (wrap(problem), task.answer(problem, rng)))
        if len(answer) < CANVAS:
            rows.append(Example(prompt, answer))
    return Pairs.of(rows)


# Examples in files.


def file_pairs(model: Checkpoint, path: Path, count: int | None = None, *, raw: bool = False) -> Pairs:
    """The first `count` examples of a prepared file, or of a JSON file of conversations, that fit the model's context.

    In a conversation the last assistant message is the answer.
    """
    from voidpad.training import chats, prepared
    from voidpad.training.corpus import encode_example

    if path.suffix == ".safetensors":
        stored = prepared.read(path)
        if (stored.roles.mask, stored.roles.eos) != (model.roles.mask, model.roles.eos):
            raise DataError(
                f"{path}: made for other token ids than {model.name}'s; prepare it with its tokenizer."
            )
        pairs = stored.pairs.select(torch.arange(len(stored.pairs))[:count])
    else:
        rows: list[Example] = []
        for place, prompt, response in islice(chats.read(path), count):
            try:
                ids = encode_example(model.tokenizer, model.roles, prompt, response, raw=raw)
            except chats.Dropped as dropped:
                raise DataError(f"{place}: {dropped.detail}.") from None
            rows.append(Example(*ids))
        if not rows:
            raise DataError(f"{path}: the file is empty. Put one conversation on each line.")
        pairs = Pairs.of(rows)
    keep = pairs.size < model.context
    if not keep.any():
        raise DataError(f"{path}: no example fits the context of {model.context} tokens; shorten them.")
    return pairs.select(keep.nonzero()[:, 0])
