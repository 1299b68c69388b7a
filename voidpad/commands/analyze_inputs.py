"""What the analyses read: prompts with answers, examples, answer lengths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from voidpad.commands.prompts import conversation, from_lines, parsed, read
from voidpad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from voidpad.diagnose.questions import Question
    from voidpad.diagnose.theory import LengthModel
    from voidpad.models import Model
    from voidpad.training.padding import Pairs

NUMBERS = "steps,expr"  # the built-in tasks that need no program to be run
EVERY = "steps,expr,complete,write"


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def integers(text: str, field: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in names(text)})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"{field}={text!r}: give whole numbers over 0, separated by commas.")
    return numbers


def given_questions(prompts: Sequence[str] | None, *, file: Path | None, count: int) -> list[Question]:
    """Prompts given as arguments or in a file; needs no model, so that a bad file is refused before one is loaded."""
    from voidpad.diagnose.questions import Question

    given = [Question(prompt) for prompt in prompts or ()]
    return given if file is None else [*given, *_in_file(file)[:count]]


def task_questions(model: Model, *, tasks: str, count: int) -> list[Question]:
    """Prompts of the built-in tasks, for models that know their words."""
    from voidpad.diagnose.questions import of_tasks, speaks_tiny

    if not speaks_tiny(model):
        raise ConfigError(f"{model.name}: no prompt; give some as arguments or with --file.")
    return of_tasks(names(tasks), count)


def _in_file(path: Path) -> list[Question]:
    """One prompt a line: text, or objects with prompt, question or messages, and perhaps answer."""
    from voidpad.diagnose.questions import Question, with_number

    text = read(path)
    if not text.lstrip().startswith("{"):
        return [Question(prompt) for prompt in from_lines(text, name=str(path))]
    questions = []
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{path}, line {number}"
        record = parsed(line, place)
        prompt = record.get("prompt") or record.get("question") if isinstance(record, dict) else None
        if isinstance(record, dict) and "messages" in record:
            prompt = conversation(record["messages"], place)
        if not prompt:
            raise DataError(f'{place}: needs "prompt", "question" or "messages".')
        answer = record.get("answer")
        questions.append(Question(prompt) if answer is None else with_number(prompt, str(answer)))
    return questions


def check_there(data: Path | None) -> None:
    """Refuse a missing file before a model is loaded; only its tokenizer can say more about the examples."""
    if data is not None and not data.is_file():
        raise DataError(f"--data {data}: there is no such file; check the path.")


def pairs(model: Model, *, data: Path | None, tasks: str, count: int, raw: bool = False) -> Pairs:
    """Examples: a prepared file, JSON lines of conversations, or the built-in tasks."""
    from voidpad.diagnose.questions import speaks_tiny, task_pairs

    if data is None:
        if not speaks_tiny(model):
            raise ConfigError(f"{model.name}: no data; give examples with --data FILE.")
        return task_pairs(names(tasks), count)
    return (
        _prepared(model, data, count) if data.suffix == ".safetensors" else _spoken(model, data, count, raw)
    )


def _prepared(model: Model, path: Path, count: int) -> Pairs:
    from voidpad.training import prepared as data
    from voidpad.training.padding import Pairs

    stored = data.read(path)
    if (stored.roles.mask, stored.roles.eos) != (model.roles.mask, model.roles.eos):
        raise DataError(
            f"{path}: made for other token ids than {model.name}'s; prepare it with its tokenizer."
        )
    pairs = stored.pairs
    last = min(count, len(pairs))
    end = int(pairs.start[last - 1] + pairs.size[last - 1])
    parts = (pairs.prompt[:last], pairs.response[:last], pairs.complete[:last])
    return _fitting(model, Pairs(pairs.tokens[:end], *parts))


def _spoken(model: Model, path: Path, count: int, raw: bool) -> Pairs:
    """The first `count` conversations of a JSON file; the last assistant message of each is the answer."""
    from voidpad.training import chats
    from voidpad.training.corpus import encode_example
    from voidpad.training.padding import Example, Pairs

    rows: list[Example] = []
    for place, chat in islice(chats.read(path), count):
        try:
            ids = encode_example(model.tokenizer, model.roles, chat.prompt, chat.response, raw=raw)
        except chats.Dropped as dropped:
            raise DataError(f"{place}: {dropped.detail}.") from None
        rows.append(Example(*ids))
    if not rows:
        raise DataError(f"{path}: the file is empty. Put one conversation on each line.")
    return _fitting(model, Pairs.of(rows))


def _fitting(model: Model, pairs: Pairs) -> Pairs:
    """Only the examples whose row, with its EOS, fits the model's context."""
    import torch

    from voidpad.training.padding import Pairs

    keep = pairs.size < model.context
    if not keep.any():
        raise DataError(f"no example fits the context of {model.context} tokens; shorten them.")
    mine = torch.repeat_interleave(keep, pairs.size)
    return Pairs(pairs.tokens[mine], pairs.prompt[keep], pairs.response[keep], pairs.complete[keep])


def lengths(text: str) -> LengthModel:
    """`2,3,3,5,8` (a sample) or `1:.35,2:.25,5:.4` (weights)."""
    from collections import Counter
    from fractions import Fraction

    from voidpad.diagnose.theory import LengthModel

    weights: Counter[int] = Counter()
    for part in names(text):
        length, _, weight = part.partition(":")
        try:
            weights[int(length)] += Fraction(weight or "1")  # type: ignore[assignment]
        except (ValueError, ZeroDivisionError):
            raise ConfigError(
                f"lengths: {part!r} is not LENGTH or LENGTH:WEIGHT, such as 12 or 12:.4."
            ) from None
    return LengthModel.weighted(weights)
