"""`voidpad analyze attention`: is it attention to committed EOS that ends answers?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from voidpad.commands import analyze_inputs as inputs
from voidpad.commands.analyze_tables import (
    Right,
    answer_row,
    any_known,
    json_number,
    percent,
    plain_table,
    write_csv,
)
from voidpad.commands.generate import bar, out
from voidpad.commands.loading import Device, Dtype
from voidpad.commands.options import RowLimit, TokenLimit, known_plan, takes_plan_fields

if TYPE_CHECKING:
    from voidpad.decode.plan import Plan
    from voidpad.diagnose.overflow import Answer
    from voidpad.models import Model


class Queries(StrEnum):
    masked = "masked"
    all = "all"


@takes_plan_fields
def attention(
    prompt: inputs.Prompts = None,
    model: inputs.ModelName = "tiny-eos",
    adapter: inputs.Adapter = None,
    plan: Annotated[str, typer.Option(help="how to decode", callback=known_plan)] = "original",
    queries: Annotated[
        Queries, typer.Option(help="who must not see EOS: masked slots, or everybody")
    ] = Queries.masked,
    file: inputs.File = None,
    tasks: inputs.TaskNames = inputs.NUMBERS,
    count: Annotated[int, typer.Option(help="prompts, of a file or of the tasks", min=1)] = 32,
    watch: Annotated[int, typer.Option(min=0, help="prompts whose attention weights are read")] = 2,
    show: Annotated[int, typer.Option(min=0, help="answers to print, before and after")] = 3,
    raw: inputs.Raw = False,
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    plot: inputs.PlotFile = None,
    csv: inputs.CsvFile = None,
    as_json: inputs.AsJson = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    fields: dict[str, Any] | None = None,
) -> None:
    """Is it attention to EOS? Decode as usual and with committed EOS hidden, and compare."""
    from voidpad.diagnose.attention import QUERIES
    from voidpad.diagnose.overflow import survey

    given = inputs.given_questions(prompt, file=file, count=count)
    loaded = inputs.load_full_attention(model, adapter, device=device, dtype=dtype)
    questions = given or inputs.task_questions(loaded, tasks=tasks, count=count)
    ids = [loaded.encode(one.prompt, raw=raw) for one in questions]
    # Block = canvas unless the user gave a block, because that is where overflow happens.
    canvas = (fields or {}).get("canvas") or inputs.usual_canvas(loaded)
    chosen = loaded.plan(plan, **{"block": canvas, **(fields or {}), "canvas": canvas})
    arms = {}
    with bar(2 * len(ids), shown=not as_json) as tick:
        for arm, forbid in (("before", None), ("after", QUERIES[queries.value])):
            arms[arm] = survey(loaded, ids, [chosen], rows=rows, tokens=tokens, forbid=forbid, tick=tick)
    right = {arm: inputs.correct(questions, answers) for arm, answers in arms.items()}
    mass = _weighed(loaded, ids[:watch], chosen, queries.value, plot=plot)
    if csv is not None:
        lines = [
            {"arm": arm, **answer_row(answer, judged)}
            for arm, answers in arms.items()
            for answer, judged in zip(answers, right[arm], strict=True)
        ]
        write_csv(csv, lines)
    if as_json:
        told: dict[str, Any] = {"model": loaded.name, "queries": queries.value}
        told |= {arm: _arm_json(answers, right[arm]) for arm, answers in arms.items()}
        layers = {arm: [json_number(v) for v in mass[arm]] for arm in arms if mass}
        told["mass"] = {**layers, "even": json_number(mass["even"]) if mass else None}
        print(json.dumps(told))
        return
    out.print(_arm_table(arms, right))
    if mass:
        out.print(_mass_table(mass))
    for row in range(min(show, len(ids))):
        for arm, answers in arms.items():
            mark = {True: "right", False: "wrong", None: ""}[right[arm][row]]
            out.print(f"--- {row} {arm} {mark}", style="bold")
            out.print(answers[row].text, markup=False)


def _weighed(
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


def _arm_table(arms: Mapping[str, Sequence[Answer]], right: Mapping[str, Right]) -> Table:
    from voidpad.diagnose.overflow import rates

    judged = ["right"] if any_known(right["before"]) else []
    shown = plain_table("EOS keys", "overflow", "mean length", *judged)
    for arm, label in (("before", "seen"), ("after", "hidden")):
        [rate] = rates(arms[arm])
        known = [one for one in right[arm] if one is not None]
        cells = [percent(rate.overflows, rate.answers), f"{rate.effective:.1f}"]
        cells += [percent(sum(known), len(known))] if known else []
        shown.add_row(label, *cells)
    return shown


def _mass_table(mass: Mapping[str, Any]) -> Table:
    shown = plain_table("attention on EOS", *(str(n + 1) for n in range(len(mass["before"]))), "even")
    shown.add_row("EOS seen", *(f"{value:.3f}" for value in mass["before"]), f"{mass['even']:.3f}")
    shown.add_row("EOS hidden", *(f"{value:.3f}" for value in mass["after"]), "")
    return shown


def _arm_json(answers: Sequence[Answer], right: Right) -> dict[str, Any]:
    from voidpad.diagnose.overflow import rates

    [rate] = rates(answers)
    known = [one for one in right if one is not None]
    return {
        "overflows": rate.overflows,
        "effective": json_number(rate.effective),
        "right": json_number(sum(known) / len(known)) if known else None,
        "answers": [{**a.facts(), "right": r} for a, r in zip(answers, right, strict=True)],
    }
