"""`voidpad analyze`: why answers come out short.

Each analysis reads its prompts or examples on the opened checkpoint, so that bad input is refused before the weights
are loaded.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from voidpad.commands.loading import Device, Dtype, check_device, load_opened, open_model
from voidpad.commands.options import RowLimit, TokenLimit, known_plan, takes_plan_fields
from voidpad.commands.prompts import conversation, from_lines, lines_of, parsed, read
from voidpad.commands.ui import bar, err, file_to_write, out, picture_to_write
from voidpad.errors import ConfigError, DataError
from voidpad.files import store

if TYPE_CHECKING:
    from voidpad.decode.plan import Plan
    from voidpad.diagnose.eos_prior import Curves
    from voidpad.diagnose.overflow import Answer, Rate, Rule, Trajectory
    from voidpad.diagnose.questions import Question
    from voidpad.models import Checkpoint, Model

app = typer.Typer(help="See why: EOS priors, overflow, attention.", no_args_is_help=True)

NUMBERS = "steps,expr"  # the built-in tasks whose answers are judged without running a program
PAPER_CANVAS = 512


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _known_tasks(value: str) -> str:
    from voidpad.diagnose.questions import task_names

    task_names(_names(value))
    return value


ModelName = Annotated[str, typer.Option("--model", help="built-in name, hub id or folder")]
Adapter = Annotated[str | None, typer.Option("--adapter", help="LoRA adapter, added without merging")]
Prompts = Annotated[list[str] | None, typer.Argument(help="one or more prompts")]
File = Annotated[
    Path | None,
    typer.Option("--file", help="prompts: text, or JSON lines with prompt or question, and answer"),
]
TaskNames = Annotated[
    str,
    typer.Option("--tasks", help="built-in tasks to take problems from; empty: all", callback=_known_tasks),
]
PromptCount = Annotated[int, typer.Option("--count", help="prompts, of a file or of the tasks", min=1)]
Raw = Annotated[bool, typer.Option("--raw", help="no chat template")]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", help="write the picture here", callback=picture_to_write)
]
CsvFile = Annotated[Path | None, typer.Option("--csv", help="write the numbers here", callback=file_to_write)]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object")]


@app.command("eos-prior")
def eos_prior(
    model: ModelName = "tiny-eos",
    adapter: Adapter = None,
    data: Annotated[
        Path | None, typer.Option(help="examples: JSON lines of messages, or a prepared file")
    ] = None,
    tasks: TaskNames = "",
    count: Annotated[int, typer.Option(help="examples", min=1)] = 600,
    batch: Annotated[int, typer.Option(help="examples of a mini-batch, padded to its longest", min=1)] = 6,
    canvas: Annotated[
        int | None, typer.Option(min=1, help="pad every answer to so many slots instead")
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="examples a slot needs for its gap to count")] = 100,
    seed: Annotated[int, typer.Option(help="of the mini-batches")] = 0,
    raw: Raw = False,
    tokens: TokenLimit = 8192,
    plot: PlotFile = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Does the model repeat its data's length distribution as P(EOS)? F(i-1), p_i and q_i, and VOID's."""
    from voidpad.diagnose.eos_prior import batched, measure, same_canvas, shuffled
    from voidpad.diagnose.questions import file_pairs, has_builtin_vocab, task_pairs

    opened = _open(model, adapter, device, dtype)
    if data is not None:
        pairs = file_pairs(opened, data, count, raw=raw)
    elif has_builtin_vocab(opened):
        pairs = task_pairs(_names(tasks), count)
    else:
        raise ConfigError(f"{opened.name}: no data; give examples with --data FILE.")
    if canvas is None:
        padded = batched(pairs, shuffled(len(pairs), batch, seed=seed))
    else:
        padded = same_canvas(pairs, canvas)
    loaded = load_opened(opened, device, dtype, None)
    with bar(len(pairs), shown=not as_json, label="examples") as tick:
        curves = measure(loaded.denoiser(), loaded.roles, padded, tokens=tokens, tick=tick)
    if csv is not None:
        _write_csv(csv, _curve_rows(curves))
    if plot is not None:
        from voidpad.diagnose import plots

        plots.save(plots.prior(curves, title=f"{loaded.name}, {len(pairs)} examples", least=least), plot)
    gaps = {one.token: _gaps(one, least) for one in curves}
    if as_json:
        told: dict[str, Any] = {"model": loaded.name, "examples": len(pairs), "least": least}
        for one in curves:
            values = {"F": one.cdf, "p": one.target, "q": one.model}
            told[one.token] = {
                "gaps (mean, max)": {
                    label: [_number(gap) for gap in two] for label, two in gaps[one.token].items()
                },
                "count": one.count.tolist(),
                **{name: [_number(value, 6) for value in part.tolist()] for name, part in values.items()},
            }
        print(json.dumps(told))
        return
    shown = _table("gap", "mean", "max", "slots")
    for one in curves:
        slots = f"{int((one.count >= least).sum())} of {len(one.count)}"
        for label, two in gaps[one.token].items():
            shown.add_row(f"{one.token.upper()} {label}", *(f"{gap:.4f}" for gap in two), slots)
    out.print(shown)
    err.print(f"{len(pairs)} examples; gaps over slots with at least {least} of them", style="dim")
    if not any((one.count >= least).any() for one in curves):
        told_least = f"no slot has {least} examples; raise --count, or lower --least below {len(pairs)}"
        err.print(told_least, style="yellow")


def _gaps(one: Curves, least: int) -> dict[str, tuple[float, float]]:
    """Mean and largest distance of each two of a token's curves."""
    pairs = {"|q - p|": ("model", "target"), "|q - F|": ("model", "cdf"), "|p - F|": ("target", "cdf")}
    return {label: one.gap(*names, least=least) for label, names in pairs.items()}


def _curve_rows(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"slot": slot, "count": int(n)} for slot, n in enumerate(curves[0].count, start=1)
    ]
    for one in curves:
        for name, values in (("F", one.cdf), ("p", one.target), ("q", one.model)):
            for row, value in zip(rows, values.tolist(), strict=True):
                row[f"{name}_{one.token}"] = "" if value != value else f"{value:.6f}"
    return rows


@app.command()
@takes_plan_fields
def overflow(
    prompt: Prompts = None,
    model: ModelName = "tiny-eos",
    adapter: Adapter = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help="how to decode; default: void for VOID-padded checkpoints, else original",
            callback=known_plan,
        ),
    ] = None,
    file: File = None,
    tasks: TaskNames = NUMBERS,
    count: PromptCount = 32,
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
    raw: Raw = False,
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    plot: PlotFile = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    fields: dict[str, Any] | None = None,
) -> None:
    """Do answers drown in EOS? Trajectories, overflow by block size, and a verdict."""
    from voidpad.diagnose.eos_prior import void_tail
    from voidpad.diagnose.overflow import Rule, advice, rates, record, survey, trajectory, verdict
    from voidpad.diagnose.trace import write

    rule = Rule(short=short, filled=filled)
    if trace:
        _recorded(trace, rule, plot=plot, csv=csv, as_json=as_json)
        return
    sizes = None if blocks is None else _block_sizes(blocks)
    given = _given_questions(prompt, file=file, count=count)
    opened = _open(model, adapter, device, dtype)
    questions = given or _task_questions(opened, tasks=tasks, count=count)
    ids = [opened.encode(one.prompt, raw=raw) for one in questions]
    name = plan or opened.default_plan
    plans = _plans_of(opened, name, sizes, fields or {})
    # The first prompt, pass by pass, at the smallest and the largest block.
    watched = [opened.fit(ids[0], one) for one in ([plans[0], plans[-1]] if len(plans) > 1 else plans)]
    loaded = load_opened(opened, device, dtype, None)
    with bar(len(ids) * len(plans), shown=not as_json) as tick:
        answers = survey(loaded, ids, plans, rule=rule, rows=rows, tokens=tokens, tick=tick)
    by_block = rates(answers)
    void = void_tail(loaded.denoiser(), loaded.roles, ids[:16], canvas=plans[-1].length.canvas)
    decodes = [record(loaded, [ids[0]], one, name=name)[0] for one in watched]
    traces = [replace(one, row=row) for row, one in enumerate(decodes)]
    trajectories = [trajectory(one, rule) for one in traces]
    if save_trace is not None:
        write(save_trace, traces)
    if plot is not None:
        _draw(trajectories, plot)
    right = _judge(questions, answers)
    if csv is not None:
        _write_csv(csv, [_answer_row(*pair) for pair in zip(answers, right, strict=True)])
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
    judged = {
        rate.block: [
            r for a, r in zip(answers, right, strict=True) if a.block == rate.block and r is not None
        ]
        for rate in by_block
    }
    if as_json:
        told = {
            "model": loaded.name,
            "blocks": [
                {**asdict(rate), "share": _number(rate.share), "right": _share(judged[rate.block])}
                for rate in by_block
            ],
            "void_tail": _number(void),
            "verdict": said,
            "advice": advised,
            "trajectories": [_trajectory_json(one) for one in trajectories],
            "answers": [{**a.facts(), "right": r} for a, r in zip(answers, right, strict=True)],
        }
        print(json.dumps(told))
        return
    out.print(_rate_table(by_block, judged))
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
    from voidpad.diagnose.trace import read as read_traces

    trajectories = [trajectory(one, rule) for path in paths for one in read_traces(path)]
    if csv is not None:
        _write_csv(csv, [row for one in trajectories for row in table(one)])
    if plot is not None:
        _draw(trajectories, plot)
    for one in trajectories:
        print(json.dumps(_trajectory_json(one))) if as_json else out.print(_trajectory_line(one))


def _block_sizes(text: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in _names(text)})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"blocks={text!r}: give whole numbers over 0, separated by commas.")
    return numbers


def _plans_of(model: Checkpoint, name: str, sizes: list[int] | None, fields: dict[str, Any]) -> list[Plan]:
    """The plan at every block size. Without --blocks: --block, or those of 32, 64, 128 and L that divide L."""
    canvas = fields.get("canvas") or _usual_canvas(model)
    if sizes is None and (block := fields.get("block")) is not None:
        sizes = [block]
    elif sizes is None:
        sizes = sorted({size for size in (32, 64, 128, canvas) if not canvas % size})
    return [model.plan(name, **{**fields, "canvas": canvas, "block": size}) for size in sizes]


def _draw(trajectories: Sequence[Trajectory], path: Path) -> None:
    """Heat maps of P(EOS), at most three side by side."""
    from voidpad.diagnose import plots

    plots.save(plots.heat(trajectories[:3]), path)


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
        "eos_share": [_number(m.eos_share) for m in one.moments],
        "effective": one.effective,
        "overflow": one.overflow,
    }


def _rate_table(by_block: Sequence[Rate], judged: Mapping[int, Sequence[bool]]) -> Table:
    right = ["right"] if any(judged.values()) else []
    shown = _table("block", "overflow", "short", "mean length", "passes", *right)
    for rate in by_block:
        mine = judged[rate.block]
        cells = [_percent(rate.overflows, rate.answers), _percent(rate.short, rate.answers)]
        cells += [f"{rate.effective:.1f}", f"{rate.passes:.1f}"]
        cells += [_percent(sum(mine), len(mine))] if mine else []
        shown.add_row(str(rate.block), *cells)
    return shown


class Queries(StrEnum):
    masked = "masked"
    all = "all"


@app.command()
@takes_plan_fields
def attention(
    prompt: Prompts = None,
    model: ModelName = "tiny-eos",
    adapter: Adapter = None,
    plan: Annotated[str, typer.Option(help="how to decode", callback=known_plan)] = "original",
    queries: Annotated[
        Queries, typer.Option(help="who must not see EOS: masked slots, or everybody")
    ] = Queries.masked,
    file: File = None,
    tasks: TaskNames = NUMBERS,
    count: PromptCount = 32,
    watch: Annotated[int, typer.Option(min=0, help="prompts whose attention weights are read")] = 2,
    show: Annotated[int, typer.Option(min=0, help="answers to print, before and after")] = 3,
    raw: Raw = False,
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    plot: PlotFile = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    fields: dict[str, Any] | None = None,
) -> None:
    """Is it attention to EOS? Decode as usual and with committed EOS hidden, and compare."""
    from voidpad.diagnose.attention import QUERIES
    from voidpad.diagnose.overflow import rates, survey

    given = _given_questions(prompt, file=file, count=count)
    opened = _open(model, adapter, device, dtype)
    questions = given or _task_questions(opened, tasks=tasks, count=count)
    ids = [opened.encode(one.prompt, raw=raw) for one in questions]
    # Block = canvas unless the user gave a block, because that is where overflow happens.
    canvas = (fields or {}).get("canvas") or _usual_canvas(opened)
    chosen = opened.plan(plan, **{"block": canvas, **(fields or {}), "canvas": canvas})
    loaded = load_opened(opened, device, dtype, None)
    arms = {}
    with bar(2 * len(ids), shown=not as_json) as tick:
        for arm, forbid in (("before", None), ("after", QUERIES[queries.value])):
            arms[arm] = survey(loaded, ids, [chosen], rows=rows, tokens=tokens, forbid=forbid, tick=tick)
    right = {arm: _judge(questions, answers) for arm, answers in arms.items()}
    known = {arm: [one for one in judged if one is not None] for arm, judged in right.items()}
    measured = {arm: rates(answers)[0] for arm, answers in arms.items()}
    mass = _eos_mass(loaded, ids[:watch], chosen, queries.value, plot=plot)
    if csv is not None:
        lines = [
            {"arm": arm, **_answer_row(*pair)}
            for arm, answers in arms.items()
            for pair in zip(answers, right[arm], strict=True)
        ]
        _write_csv(csv, lines)
    if as_json:
        told: dict[str, Any] = {"model": loaded.name, "queries": queries.value}
        for arm, answers in arms.items():
            told[arm] = {
                "overflows": measured[arm].overflows,
                "effective": _number(measured[arm].effective),
                "right": _share(known[arm]),
                "answers": [{**a.facts(), "right": r} for a, r in zip(answers, right[arm], strict=True)],
            }
        layers = {arm: [_number(v) for v in mass[arm]] for arm in arms if mass}
        told["mass"] = {**layers, "even": _number(mass["even"]) if mass else None}
        print(json.dumps(told))
        return
    shown = _table("EOS keys", "overflow", "mean length", *(["right"] if known["before"] else []))
    for arm, label in (("before", "seen"), ("after", "hidden")):
        cells = [_percent(measured[arm].overflows, measured[arm].answers), f"{measured[arm].effective:.1f}"]
        cells += [_percent(sum(known[arm]), len(known[arm]))] if known[arm] else []
        shown.add_row(label, *cells)
    out.print(shown)
    if mass:
        shown = _table("attention on EOS", *(str(n + 1) for n in range(len(mass["before"]))), "even")
        shown.add_row("EOS seen", *(f"{value:.3f}" for value in mass["before"]), f"{mass['even']:.3f}")
        shown.add_row("EOS hidden", *(f"{value:.3f}" for value in mass["after"]), "")
        out.print(shown)
    for row in range(min(show, len(ids))):
        for arm, answers in arms.items():
            mark = {True: "right", False: "wrong", None: ""}[right[arm][row]]
            out.print(f"--- {row} {arm} {mark}", style="bold")
            out.print(answers[row].text, markup=False)


def _eos_mass(
    model: Model, ids: Sequence[list[int]], plan: Plan, queries: str, *, plot: Path | None
) -> dict[str, Any]:
    """Attention on EOS keys by layer, without and with the intervention; nothing without prompts."""
    from voidpad.diagnose.attention import QUERIES, by_layer, probe_attention

    if not ids:
        return {}
    fitted = model.fit(max(ids, key=len), plan)
    before = probe_attention(model, ids, fitted)
    after = probe_attention(model, ids, fitted, forbid=QUERIES[queries])
    if plot is not None:
        from voidpad.diagnose import plots

        plots.save(plots.layers(before, title=f"{model.name}: where masked slots look"), plot)
    (layers, even), (hidden, _) = by_layer(before), by_layer(after)
    return {"before": layers, "after": hidden, "even": even}


# What the analyses share: the checkpoint, its prompts, judging, tables and files.


def _open(model: str, adapter: str | None, device: str, dtype: str) -> Checkpoint:
    """The checkpoint without weights; refused if it is block-causal, because all analyses are about full attention."""
    check_device(device, dtype, None)
    opened = open_model(model, adapter)
    opened.require_full_attention("this analysis")
    return opened


def _usual_canvas(model: Checkpoint) -> int:
    """The canvas of decodes where the user gave none: that of the built-in tasks, or the paper's."""
    from voidpad.builtin.tasks import CANVAS
    from voidpad.diagnose.questions import has_builtin_vocab

    return CANVAS if has_builtin_vocab(model) else PAPER_CANVAS


def _given_questions(prompts: Sequence[str] | None, *, file: Path | None, count: int) -> list[Question]:
    """Prompts given as arguments and in a file; needs no model."""
    from voidpad.diagnose.questions import Question

    given = [Question(prompt) for prompt in prompts or ()]
    return given if file is None else [*given, *_in_file(file)[:count]]


def _task_questions(model: Checkpoint, *, tasks: str, count: int) -> list[Question]:
    """Problems of the built-in tasks, for models that know their words."""
    from voidpad.diagnose.questions import has_builtin_vocab, of_tasks

    if not has_builtin_vocab(model):
        raise ConfigError(f"{model.name}: no prompt; give some as arguments or with --file.")
    return of_tasks(_names(tasks), count)


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


def _judge(questions: Sequence[Question], answers: Sequence[Answer]) -> list[bool | None]:
    """Whether each answer is right; None where nobody can tell."""
    judges = [questions[answer.row].right for answer in answers]
    return [judge(a.text) if judge else None for judge, a in zip(judges, answers, strict=True)]


def _answer_row(answer: Answer, right: bool | None) -> dict[str, Any]:
    """An answer as a line of a CSV file."""
    return {**answer.facts(), "right": "" if right is None else right}


def _table(*heads: str) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for place, head in enumerate(heads):
        shown.add_column(head, justify="right" if place else "left", no_wrap=True)
    return shown


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    store(path, [text.getvalue()])


def _number(value: float | None, digits: int = 4) -> float | None:
    """For JSON, which has no NaN."""
    return None if value is None or value != value else round(value, digits)


def _share(right: Sequence[bool]) -> float | None:
    return _number(sum(right) / len(right)) if right else None


def _percent(hits: int, count: int) -> str:
    return f"{hits}/{count} ({100 * hits / count:.0f} %)"
