"""`voidpad analyze overflow`: do answers drown in EOS?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
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
from voidpad.commands.outputs import file_to_write
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.decode.plan import Plan
    from voidpad.diagnose.overflow import Answer, Rate, Rule, Trajectory
    from voidpad.models import Model


@takes_plan_fields
def overflow(
    prompt: inputs.Prompts = None,
    model: inputs.ModelName = "tiny-eos",
    adapter: inputs.Adapter = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help="how to decode; default: void for VOID-padded checkpoints, else original",
            callback=known_plan,
        ),
    ] = None,
    file: inputs.File = None,
    tasks: inputs.TaskNames = inputs.NUMBERS,
    count: Annotated[int, typer.Option(help="prompts, of a file or of the tasks", min=1)] = 32,
    blocks: Annotated[str | None, typer.Option(help="block sizes, separated by commas")] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(help="read recorded decodes instead of decoding (repeatable)")
    ] = None,
    short: Annotated[
        float, typer.Option(min=0, max=1, help="overflow: at most this share of the canvas before EOS")
    ] = 0.05,
    filled: Annotated[
        float, typer.Option(min=0, max=1, help="overflow: at least this share of the rest is EOS")
    ] = 0.9,
    save_trace: Annotated[
        Path | None,
        typer.Option(
            help="write the first prompt's decodes, with every P(EOS) and P(VOID)", callback=file_to_write
        ),
    ] = None,
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
    """Do answers drown in EOS? Trajectories, overflow by block size, and a verdict."""
    from voidpad.diagnose.empty import void_tail
    from voidpad.diagnose.overflow import Rule, advice, rates, record, survey, trajectory, verdict
    from voidpad.diagnose.trace import write

    rule = Rule(short=short, filled=filled)
    if trace:
        _recorded(trace, rule, plot=plot, csv=csv, as_json=as_json)
        return
    sizes = None if blocks is None else _integers(blocks, "blocks")  # refused before anything is loaded
    given = inputs.given_questions(prompt, file=file, count=count)
    loaded = inputs.load_full_attention(model, adapter, device=device, dtype=dtype)
    questions = given or inputs.task_questions(loaded, tasks=tasks, count=count)
    ids = [loaded.encode(one.prompt, raw=raw) for one in questions]
    name = plan or loaded.default_plan
    plans = _plans_of(loaded, name, sizes, fields or {})
    with bar(len(ids) * len(plans), shown=not as_json) as tick:
        answers = survey(loaded, ids, plans, rule=rule, rows=rows, tokens=tokens, tick=tick)
    by_block = rates(answers)
    void = void_tail(loaded.denoiser(), loaded.roles, ids[:16], canvas=plans[-1].length.canvas)
    # The first prompt, pass by pass, at the smallest and the largest block.
    ends = [plans[0], plans[-1]] if len(plans) > 1 else plans
    decodes = [record(loaded, [ids[0]], loaded.fit(ids[0], one), name=name)[0] for one in ends]
    traces = [replace(one, row=row) for row, one in enumerate(decodes)]
    trajectories = [trajectory(one, rule) for one in traces]
    if save_trace is not None:
        write(save_trace, traces)
    if plot is not None:
        _draw(trajectories, plot)
    right = inputs.correct(questions, answers)
    if csv is not None:
        write_csv(csv, [answer_row(answer, judged) for answer, judged in zip(answers, right, strict=True)])
    said = verdict(by_block, void, rule)
    canvas = (fields or {}).get("canvas")
    advised = advice(
        by_block,
        void,
        rule,
        model=model,
        adapter=adapter,
        plan=name,
        canvas=canvas,
        adapted=loaded.adapted,
    )
    if as_json:
        told = {
            "model": loaded.name,
            "blocks": [_rate_json(rate, _judged(answers, right, rate.block)) for rate in by_block],
            "void_tail": json_number(void),
            "verdict": said,
            "advice": advised,
            "trajectories": [_trajectory_json(one) for one in trajectories],
            "answers": [{**a.facts(), "right": r} for a, r in zip(answers, right, strict=True)],
        }
        print(json.dumps(told))
        return
    out.print(_rate_table(by_block, answers, right))
    for one in trajectories:
        out.print(_trajectory_line(one))
    out.print(said, style="bold")
    for line in advised:
        out.print(line, markup=False)


def _recorded(
    paths: Sequence[Path], rule: Rule, *, plot: Path | None, csv: Path | None, as_json: bool
) -> None:
    """Trajectories of trace files."""
    from voidpad.diagnose.overflow import table, trajectory
    from voidpad.diagnose.trace import read

    trajectories = [trajectory(one, rule) for path in paths for one in read(path)]
    if csv is not None:
        write_csv(csv, [row for one in trajectories for row in table(one)])
    if plot is not None:
        _draw(trajectories, plot)
    for one in trajectories:
        print(json.dumps(_trajectory_json(one))) if as_json else out.print(_trajectory_line(one))


def _integers(text: str, field: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in inputs.names(text)})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"{field}={text!r}: give whole numbers over 0, separated by commas.")
    return numbers


def _plans_of(model: Model, name: str, sizes: list[int] | None, fields: dict[str, Any]) -> list[Plan]:
    """The plan at every block size. Without --blocks: --block, or those of 32, 64, 128 and L that divide L."""
    canvas = fields.pop("canvas", None) or inputs.usual_canvas(model)
    block = fields.pop("block", None)
    if sizes is None and block is not None:
        sizes = [block]
    elif sizes is None:
        sizes = sorted({size for size in (32, 64, 128, canvas) if not canvas % size})
    return [model.plan(name, **{**fields, "canvas": canvas, "block": size}) for size in sizes]


def _draw(trajectories: Sequence[Trajectory], path: Path) -> None:
    """Heat maps of P(EOS), at most three side by side."""
    from voidpad.diagnose import plots

    some = list(trajectories)[:3]
    plots.save(plots.heat(some, titles=[title(one) for one in some]), path)


def title(one: Trajectory) -> str:
    """A decode in a few words, over its picture."""
    plan = one.trace.header.plan
    end = "overflow" if one.overflow else f"{one.effective} tokens"
    return f"{one.trace.header.model}, block {plan.get('block', '?')}: {end}"


def _trajectory_line(one: Trajectory) -> str:
    first = next((m.number + 1 for m in one.moments if m.first_eos is not None), None)
    seen = f"first EOS in pass {first}" if first else "no EOS"
    stages = f"stage 1 {one.stage1} passes, stage 2 {one.stage2}"
    flag = "overflow" if one.overflow else "no overflow"
    block = one.trace.header.plan.get("block", "?")
    return (
        f"{one.trace.header.model}, row {one.trace.row}, block {block}: {seen}, {stages}; "
        f"effective length {one.effective} of {len(one.trace.result.ids)}, {flag}"
    )


def _trajectory_json(one: Trajectory) -> dict[str, Any]:
    return {
        "model": one.trace.header.model,
        "row": one.trace.row,
        "block": one.trace.header.plan.get("block"),
        "canvas": len(one.trace.result.ids),
        "stage1": one.stage1,
        "stage2": one.stage2,
        "first_eos": [None if m.first_eos is None else m.first_eos + 1 for m in one.moments],
        "eos_share": [json_number(m.eos_share) for m in one.moments],
        "effective": one.effective,
        "overflow": one.overflow,
    }


def _judged(answers: Sequence[Answer], right: Right, block: int) -> list[bool]:
    """Whether the answers at one block size are right, where that is known."""
    return [r for a, r in zip(answers, right, strict=True) if a.block == block and r is not None]


def _rate_table(by_block: Sequence[Rate], answers: Sequence[Answer], right: Right) -> Table:
    judged = ["right"] if any_known(right) else []
    shown = plain_table("block", "overflow", "short", "mean length", "passes", *judged)
    for rate in by_block:
        cells = [percent(rate.overflows, rate.answers), percent(rate.short, rate.answers)]
        cells += [f"{rate.effective:.1f}", f"{rate.passes:.1f}"]
        mine = _judged(answers, right, rate.block)
        cells += [percent(sum(mine), len(mine))] if mine else []
        shown.add_row(str(rate.block), *cells)
    return shown


def _rate_json(rate: Rate, right: Sequence[bool]) -> dict[str, Any]:
    share = json_number(sum(right) / len(right)) if right else None
    return {**asdict(rate), "share": json_number(rate.share), "right": share}
