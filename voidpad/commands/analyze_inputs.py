"""What the analyses of `voidpad analyze` share: their options, the model, prompts with answers, examples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voidpad.commands.loading import load_model
from voidpad.commands.outputs import file_to_write, picture_to_write
from voidpad.commands.prompts import conversation, from_lines, lines_of, parsed, read
from voidpad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from voidpad.diagnose.overflow import Answer
    from voidpad.diagnose.questions import Question
    from voidpad.models import Model
    from voidpad.training.padding import Pairs

NUMBERS = "steps,expr"  # the built-in tasks that need no program to be run
EVERY = "steps,expr,complete,write"

ModelName = Annotated[str, typer.Option("--model", help="built-in name, hub id or folder")]
Adapter = Annotated[str | None, typer.Option(help="LoRA adapter, added without merging")]
Prompts = Annotated[list[str] | None, typer.Argument(help="one or more prompts")]
File = Annotated[
    Path | None, typer.Option(help="prompts: text, or JSON lines with prompt or question, and answer")
]
Data = Annotated[Path | None, typer.Option(help="examples: JSON lines of messages, or a prepared file")]
Raw = Annotated[bool, typer.Option("--raw", help="no chat template")]
PlotFile = Annotated[Path | None, typer.Option(help="write the picture here", callback=picture_to_write)]
CsvFile = Annotated[Path | None, typer.Option("--csv", help="write the numbers here", callback=file_to_write)]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object")]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _known_tasks(value: str) -> str:
    from voidpad.diagnose.questions import task_names

    task_names(names(value))
    return value


TaskNames = Annotated[
    str, typer.Option("--tasks", help="built-in tasks to take problems from", callback=_known_tasks)
]


def load_full_attention(model: str, adapter: str | None, *, device: str, dtype: str) -> Model:
    """The model; refused if it is block-causal, because the analyses are about slots that see the whole canvas."""
    loaded = load_model(model, adapter, device=device, dtype=dtype)
    loaded.require_full_attention("this analysis")
    return loaded


def usual_canvas(model: Model) -> int:
    """The canvas of decodes where the user gave none: that of the built-in tasks, or the paper's."""
    from voidpad.diagnose.questions import speaks_tiny

    return 192 if speaks_tiny(model) else 512


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
    for number, line in enumerate(lines_of(text), 1):
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


def correct(questions: Sequence[Question], answers: Sequence[Answer]) -> list[bool | None]:
    judges = [questions[answer.row].right for answer in answers]
    return [judge(a.text) if judge else None for judge, a in zip(judges, answers, strict=True)]


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
