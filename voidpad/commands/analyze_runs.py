"""The work of `voidpad analyze`: plans, decodes and comparisons; the commands only ask and show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidpad.commands import analyze_inputs as inputs
from voidpad.commands.generate import bar

if TYPE_CHECKING:
    from voidpad.decode.plan import Plan
    from voidpad.diagnose.overflow import Answer
    from voidpad.diagnose.questions import Question
    from voidpad.diagnose.theory import Case, Lengths
    from voidpad.diagnose.trace import Trace
    from voidpad.models import Model


def plans_of(
    model: Model, name: str | None, blocks: str | None, fields: dict[str, Any]
) -> tuple[str, list[Plan]]:
    """The plan at every block size. Without --blocks: --block, or those of 32, 64, 128 and L that divide L."""
    from voidpad.diagnose.questions import speaks_tiny

    name = name or model.default_plan
    usual = 192 if speaks_tiny(model) else 512
    canvas = fields.pop("canvas", None) or usual
    one = fields.pop("block", None)
    if blocks is not None:
        sizes = inputs.integers(blocks, "blocks")
    elif one is not None:
        sizes = [one]
    else:
        sizes = sorted({size for size in (32, 64, 128, canvas) if not canvas % size})
    return name, [model.plan(name, **{**fields, "canvas": canvas, "block": size}) for size in sizes]


def whole_canvas(model: Model, name: str, fields: dict[str, Any]) -> Plan:
    """The plan with block = canvas unless told otherwise: that is where overflow happens."""
    from voidpad.diagnose.questions import speaks_tiny

    canvas = fields.get("canvas") or (192 if speaks_tiny(model) else 512)
    return model.plan(name, **{"block": canvas, **fields, "canvas": canvas})


def surveyed(
    model: Model, ids: Sequence[list[int]], plans: Sequence[Plan], *, setup: Any, shown: bool
) -> tuple[list[Answer], dict[str, Any]]:
    from voidpad.diagnose.empty import void_tail
    from voidpad.diagnose.overflow import rates, survey, verdict

    with bar(len(ids) * len(plans), shown=shown) as tick:
        answers = survey(model, ids, plans, setup=setup, tick=tick)
    void = void_tail(model.denoiser(), model.roles, ids[:16], canvas=plans[-1].length.canvas)
    found = rates(answers)
    return answers, {"void_tail": void, "verdict": verdict(found, void, setup.rule) + "."}


def followed(model: Model, ids: list[int], plans: Sequence[Plan], name: str) -> list[Trace]:
    """The prompt, pass by pass, at the smallest and the largest block."""
    from voidpad.diagnose.overflow import record

    ends = [plans[0], plans[-1]] if len(plans) > 1 else [plans[0]]
    traces = [record(model, [ids], model.fit(ids, plan), name=name)[0] for plan in ends]
    return [replace(trace, row=row) for row, trace in enumerate(traces)]


def correct(asked: Sequence[Question], answers: Sequence[Answer]) -> list[bool | None]:
    judges = [asked[answer.row].right for answer in answers]
    return [judge(a.text) if judge else None for judge, a in zip(judges, answers, strict=True)]


def weighed(
    model: Model, ids: Sequence[list[int]], plan: Plan, queries: str, *, plot: Path | None
) -> dict[str, Any]:
    """Attention on EOS keys by layer, without and with the intervention."""
    from voidpad.diagnose.attention import QUERIES, by_layer, watch

    if not ids:
        return {}
    fitted = model.fit(max(ids, key=len), plan)
    before = watch(model, ids, fitted)
    after = watch(model, ids, fitted, forbid=QUERIES[queries])
    if plot is not None:
        from voidpad.diagnose import plots

        plots.save(plots.layers(before, title=f"{model.name}: where masked slots look"), plot)
    (layers, even), (hidden, _) = by_layer(before), by_layer(after)
    return {"before": layers, "after": hidden, "even": even}


@dataclass(frozen=True)
class Wanted:
    """What a model is compared on."""

    tasks: str
    count: int
    draws: int
    raw: bool


def compared(model: Model, data: Path | None, wanted: Wanted) -> list[Case]:
    """Prompts with lengths: a file's with the file's lengths, or built-in ones with their own."""
    from voidpad.diagnose.questions import known, speaks_tiny, task_lengths
    from voidpad.diagnose.theory import Case, Lengths

    if data is None and speaks_tiny(model):
        chosen = known(inputs.names(wanted.tasks))
        turns = [(chosen[n % len(chosen)], n // len(chosen)) for n in range(wanted.count)]
        drawn = [task_lengths(task, index, wanted.draws) for task, index in turns]
        return [Case(model.encode(prompt), Lengths.of(found)) for prompt, found in drawn]
    pairs = inputs.pairs(model, data=data, tasks=wanted.tasks, count=wanted.count, raw=wanted.raw)
    shared = Lengths.of(pairs.response[pairs.complete].tolist())
    begin, size = pairs.start.tolist(), pairs.prompt.tolist()
    rows = [pairs.tokens[at : at + n].tolist() for at, n in zip(begin, size, strict=True)]
    return [Case(row, shared) for row in rows]


def default_canvas(known: Lengths, model: Model | None) -> int:
    from voidpad.diagnose.questions import speaks_tiny

    longest = known.weights[-1][0] + 1
    return 192 if model is not None and speaks_tiny(model) else longest
