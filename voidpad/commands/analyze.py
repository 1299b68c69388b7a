"""`voidpad analyze`: why answers come out short.

Each analysis reads its prompts or examples on the opened checkpoint, so that bad input is refused before the weights
are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from voidpad.commands.options import (
    AsJson,
    ModelOptions,
    Raw,
    RowLimit,
    SamplingOptions,
    TokenLimit,
    grouped,
)
from voidpad.commands.prompts import from_lines
from voidpad.commands.ui import bar, err, note, out, output_file, output_picture, table, write_csv
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.diagnose.eos_prior import Curves
    from voidpad.diagnose.overflow import Answer, Rule, Trajectory
    from voidpad.diagnose.questions import Question
    from voidpad.models import Checkpoint

app = typer.Typer(help="See why: EOS priors, overflow, attention.", no_args_is_help=True)

PAPER_CANVAS = 512

PLOT = output_picture("write the picture here")
CSV = output_file(None, "write the numbers here")
TaskNames = Annotated[str, Option("--tasks", help="built-in tasks to take problems from; empty: all")]


@dataclass(frozen=True)
class AnalysedModel(ModelOptions):
    """A checkpoint with full attention, which all analyses are about."""

    model: str = Option("tiny-eos", help="built-in name, hub id or folder")

    def open(self, **how: Any) -> Checkpoint:
        opened = super().open(**how)
        opened.require_full_attention("this analysis")
        return opened


@dataclass(frozen=True)
class QuestionOptions:
    """Prompts, and who can judge their answers."""

    prompt: list[str] | None = Argument(None, help="one or more prompts")
    file: Path | None = Option(None, help="prompts: text, or JSON lines with prompt or question, and answer")
    tasks: TaskNames = "steps,expr"  # the built-in tasks whose answers are judged without running a program
    count: int = Option(32, help="prompts, of a file or of the tasks", min=1)
    raw: Raw = False
    rows: RowLimit = 32
    tokens: TokenLimit = 16384

    def questions(self, opened: Checkpoint) -> list[Question]:
        """Prompts of arguments and files; without them, problems of the built-in tasks."""
        from voidpad.diagnose.questions import Question, has_builtin_vocab, of_tasks, with_number

        given = [Question(prompt) for prompt in self.prompt or ()]
        for prompt, answer in from_lines(self.file)[: self.count] if self.file else ():
            given.append(Question(prompt) if answer is None else with_number(prompt, str(answer)))
        if given:
            return given
        if not has_builtin_vocab(opened):
            raise ConfigError(f"{opened.name}: no prompt; give some as arguments or with --file.")
        return of_tasks(_names(self.tasks), self.count)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _usual_canvas(model: Checkpoint) -> int:
    """The canvas of decodes where the user gave none: that of the built-in tasks, or the paper's."""
    from voidpad.builtin.tasks import CANVAS
    from voidpad.diagnose.questions import has_builtin_vocab

    return CANVAS if has_builtin_vocab(model) else PAPER_CANVAS


@app.command("eos-prior")
@grouped
def eos_prior(
    source: AnalysedModel,
    data: Path | None = Option(None, help="examples: JSON lines of messages, or a prepared file"),
    tasks: TaskNames = "",
    count: int = Option(600, help="examples", min=1),
    batch: int = Option(6, help="examples of a mini-batch, padded to its longest", min=1),
    canvas: int | None = Option(None, min=1, help="pad every answer to so many slots instead"),
    least: int = Option(100, min=1, help="examples a slot needs for its gap to count"),
    seed: int = Option(0, help="of the mini-batches"),
    raw: Raw = False,
    tokens: TokenLimit = 8192,
    plot: Path | None = PLOT,
    csv: Path | None = CSV,
    as_json: AsJson = False,
) -> None:
    """Does the model repeat its data's length distribution as P(EOS)? F(i-1), p_i and q_i, and VOID's."""
    from voidpad.diagnose.eos_prior import batched, measure, same_canvas, shuffled
    from voidpad.diagnose.questions import file_pairs, has_builtin_vocab, task_pairs

    opened = source.open()
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
    model = source.load(opened)
    with bar(len(pairs), shown=not as_json, label="examples") as tick:
        curves = measure(model.denoiser(), model.roles, padded, tokens=tokens, tick=tick)
    if csv is not None:
        write_csv(csv, _curve_rows(curves))
    if plot is not None:
        from voidpad.diagnose import plots

        plots.save(plots.prior(curves, title=f"{model.name}, {len(pairs)} examples", least=least), plot)
    gaps = {one.token: _gaps(one, least) for one in curves}
    if as_json:
        told: dict[str, Any] = {"model": model.name, "examples": len(pairs), "least": least}
        for one in curves:
            told[one.token] = {
                "gaps (mean, max)": {
                    label: [_number(gap) for gap in two] for label, two in gaps[one.token].items()
                },
                "count": one.count.tolist(),
                **{name: [_number(value, 6) for value in part] for name, part in _columns(one).items()},
            }
        print(json.dumps(told))
        return
    rows = [
        (
            f"{one.token.upper()} {label}",
            *(f"{gap:.4f}" for gap in two),
            f"{int((one.count >= least).sum())} of {len(one.count)}",
        )
        for one in curves
        for label, two in gaps[one.token].items()
    ]
    out.print(table(("gap", "mean", "max", "slots"), rows))
    note(f"{len(pairs)} examples; gaps over slots with at least {least} of them")
    if not any((one.count >= least).any() for one in curves):
        few = f"no slot has {least} examples; raise --count, or lower --least below {len(pairs)}"
        err.print(few, style="yellow")


def _columns(one: Curves) -> dict[str, list[float]]:
    return {"F": one.cdf.tolist(), "p": one.target.tolist(), "q": one.model.tolist()}


def _gaps(one: Curves, least: int) -> dict[str, tuple[float, float]]:
    """Mean and largest distance of each two of a token's curves."""
    pairs = {"|q - p|": ("model", "target"), "|q - F|": ("model", "cdf"), "|p - F|": ("target", "cdf")}
    return {label: one.gap(*names, least=least) for label, names in pairs.items()}


def _curve_rows(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"slot": slot, "count": int(n)} for slot, n in enumerate(curves[0].count, start=1)
    ]
    for one in curves:
        for name, values in _columns(one).items():
            for row, value in zip(rows, values, strict=True):
                row[f"{name}_{one.token}"] = "" if value != value else f"{value:.6f}"
    return rows


@app.command()
@grouped
def overflow(
    source: AnalysedModel,
    decoding: SamplingOptions,
    asked: QuestionOptions,
    blocks: str | None = Option(None, help="block sizes, separated by commas"),
    trace: list[Path] | None = Option(None, help="read recorded decodes instead of decoding (repeatable)"),
    short: float = Option(0.05, min=0, max=1, help="overflow: at most this share of the canvas before EOS"),
    filled: float = Option(0.9, min=0, max=1, help="overflow: at least this share of the rest is EOS"),
    save_trace: Path | None = output_file(
        None, "write the first prompt's decodes, with every P(EOS) and P(VOID)"
    ),
    plot: Path | None = PLOT,
    csv: Path | None = CSV,
    as_json: AsJson = False,
) -> None:
    """Do answers drown in EOS? Trajectories, overflow by block size, and a verdict."""
    from voidpad.diagnose import plots
    from voidpad.diagnose.eos_prior import void_tail
    from voidpad.diagnose.overflow import Rule, advice, rates, record, survey, trajectory, verdict
    from voidpad.diagnose.trace import write

    rule = Rule(short=short, filled=filled)
    if trace:
        _recorded(trace, rule, plot=plot, csv=csv, as_json=as_json)
        return
    opened = source.open()
    questions = asked.questions(opened)
    ids = [opened.encode(one.prompt, raw=asked.raw) for one in questions]
    fields = decoding.fields()
    canvas = fields.pop("canvas", None) or _usual_canvas(opened)
    block = fields.pop("block", None)
    name, wanted = decoding.plan or opened.default_plan, decoding.named()
    plans = [
        opened.plan(wanted, canvas=canvas, block=size, **fields)
        for size in _block_sizes(blocks, block, canvas)
    ]
    # The first prompt, pass by pass, at the smallest and the largest block.
    watched = [opened.fit(ids[0], one) for one in ([plans[0], plans[-1]] if len(plans) > 1 else plans)]
    model = source.load(opened)
    with bar(len(ids) * len(plans), shown=not as_json) as tick:
        answers = survey(model, ids, plans, rule=rule, rows=asked.rows, tokens=asked.tokens, tick=tick)
    by_block = rates(answers)
    void = void_tail(model.denoiser(), model.roles, ids[:16], canvas=plans[-1].length.canvas)
    traces = [replace(record(model, [ids[0]], one, name=name)[0], row=row) for row, one in enumerate(watched)]
    trajectories = [trajectory(one, rule) for one in traces]
    if save_trace is not None:
        write(save_trace, traces)
    if plot is not None:
        plots.save(plots.heat(trajectories[:3]), plot)
    judged = _judged(questions, answers)
    if csv is not None:
        write_csv(csv, [_csv_row(one) for one in judged])
    right = {rate.block: _known([one for one in judged if one["block"] == rate.block]) for rate in by_block}
    said = verdict(by_block, void, rule)
    advised = advice(
        by_block,
        void,
        rule,
        model=source.model,
        adapter=source.adapter,
        plan=name,
        canvas=decoding.canvas,
        adapted=model.adapted,
    )
    if as_json:
        told = {
            "model": model.name,
            "blocks": [
                {**asdict(rate), "share": _number(rate.share), "right": _share(right[rate.block])}
                for rate in by_block
            ],
            "void_tail": _number(void),
            "verdict": said,
            "advice": advised,
            "trajectories": [_trajectory_json(one) for one in trajectories],
            "answers": judged,
        }
        print(json.dumps(told))
        return
    rows = [
        (
            str(rate.block),
            _percent(rate.overflows, rate.answers),
            _percent(rate.short, rate.answers),
            f"{rate.effective:.1f}",
            f"{rate.passes:.1f}",
            *([_percent(sum(right[rate.block]), len(right[rate.block]))] if right[rate.block] else []),
        )
        for rate in by_block
    ]
    heads = (
        "block",
        "overflow",
        "short",
        "mean length",
        "passes",
        *(["right"] if any(right.values()) else []),
    )
    out.print(table(heads, rows))
    for one in trajectories:
        out.print(_trajectory_line(one), markup=False)
    out.print(said, style="bold")
    for line in advised:
        out.print(line, markup=False)


def _recorded(
    paths: Sequence[Path], rule: Rule, *, plot: Path | None, csv: Path | None, as_json: bool
) -> None:
    """Trajectories of trace files."""
    from voidpad.diagnose import plots
    from voidpad.diagnose.overflow import table as passes_of
    from voidpad.diagnose.overflow import trajectory
    from voidpad.diagnose.trace import read

    trajectories = [trajectory(one, rule) for path in paths for one in read(path)]
    if csv is not None:
        write_csv(csv, [row for one in trajectories for row in passes_of(one)])
    if plot is not None:
        plots.save(plots.heat(trajectories[:3]), plot)
    for one in trajectories:
        print(json.dumps(_trajectory_json(one)) if as_json else _trajectory_line(one))


def _block_sizes(text: str | None, block: int | None, canvas: int) -> list[int]:
    """The sizes of --blocks; without it --block, or those of 32, 64, 128 and L that divide L."""
    if text is None:
        usual = sorted({size for size in (32, 64, 128, canvas) if not canvas % size})
        return usual if block is None else [block]
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"blocks={text!r}: give whole numbers, separated by commas.") from None


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


class Queries(StrEnum):
    masked = "masked"
    all = "all"


@app.command()
@grouped
def attention(
    source: AnalysedModel,
    decoding: SamplingOptions,
    asked: QuestionOptions,
    queries: Queries = Option(Queries.masked, help="who must not see EOS: masked slots, or everybody"),
    watch: int = Option(2, min=0, help="prompts whose attention weights are read"),
    show: int = Option(3, min=0, help="answers to print, before and after"),
    plot: Path | None = PLOT,
    csv: Path | None = CSV,
    as_json: AsJson = False,
) -> None:
    """Is it attention to EOS? Decode as usual and with committed EOS hidden, and compare."""
    from voidpad.diagnose import plots
    from voidpad.diagnose.attention import QUERIES, by_layer, probe_attention
    from voidpad.diagnose.overflow import rates, survey

    opened = source.open()
    questions = asked.questions(opened)
    ids = [opened.encode(one.prompt, raw=asked.raw) for one in questions]
    # Block = canvas unless the user gave a block, because that is where overflow happens.
    canvas = decoding.canvas or _usual_canvas(opened)
    fields = {"block": canvas, **decoding.fields(), "canvas": canvas}
    plan = opened.plan(decoding.named() or "original", **fields)
    model = source.load(opened)
    hidden = {"before": None, "after": QUERIES[queries.value]}
    answers, weights = {}, {}
    with bar(2 * len(ids), shown=not as_json) as tick:
        for arm, forbid in hidden.items():
            answers[arm] = survey(
                model, ids, [plan], rows=asked.rows, tokens=asked.tokens, forbid=forbid, tick=tick
            )
    judged = {arm: _judged(questions, some) for arm, some in answers.items()}
    right = {arm: _known(some) for arm, some in judged.items()}
    measured = {arm: rates(some)[0] for arm, some in answers.items()}
    if watch:
        fitted = model.fit(max(ids[:watch], key=len), plan)
        weights = {
            arm: probe_attention(model, ids[:watch], fitted, forbid=forbid) for arm, forbid in hidden.items()
        }
        if plot is not None:
            plots.save(plots.layers(weights["before"], title=f"{model.name}: where masked slots look"), plot)
    layers = {arm: by_layer(seen)[0] for arm, seen in weights.items()}
    even = by_layer(weights["before"])[1] if weights else None
    if csv is not None:
        write_csv(csv, [{"arm": arm, **_csv_row(one)} for arm, some in judged.items() for one in some])
    if as_json:
        told: dict[str, Any] = {"model": model.name, "queries": queries.value}
        for arm, rate in measured.items():
            told[arm] = {
                "overflows": rate.overflows,
                "effective": _number(rate.effective),
                "right": _share(right[arm]),
                "answers": judged[arm],
            }
        told["mass"] = {arm: [_number(value) for value in some] for arm, some in layers.items()}
        told["mass"]["even"] = _number(even)
        print(json.dumps(told))
        return
    labels = {"before": "EOS seen", "after": "EOS hidden"}
    rows = [
        (
            labels[arm],
            _percent(rate.overflows, rate.answers),
            f"{rate.effective:.1f}",
            *([_percent(sum(right[arm]), len(right[arm]))] if right[arm] else []),
        )
        for arm, rate in measured.items()
    ]
    out.print(table(("", "overflow", "mean length", *(["right"] if right["before"] else [])), rows))
    if even is not None:
        numbers = [str(layer) for layer in range(1, len(layers["before"]) + 1)]
        rows = [(labels[arm], *(f"{value:.3f}" for value in some)) for arm, some in layers.items()]
        out.print(table(("attention on EOS by layer", *numbers), rows))
        out.print(f"attention spread evenly over the keys would be {even:.3f}")
    for row in range(min(show, len(ids))):
        for arm, some in judged.items():
            mark = {True: "right", False: "wrong", None: ""}[some[row]["right"]]
            out.print(f"--- {row} {arm} {mark}", style="bold")
            out.print(some[row]["text"], markup=False)


# What the analyses share: judging and numbers.


def _judged(questions: Sequence[Question], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """What tables and files say about each answer; `right` is None where nobody can tell."""
    judges = [questions[answer.row].right for answer in answers]
    return [
        {**answer.facts(), "right": judge(answer.text) if judge else None}
        for judge, answer in zip(judges, answers, strict=True)
    ]


def _known(judged: Sequence[Mapping[str, Any]]) -> list[bool]:
    return [one["right"] for one in judged if one["right"] is not None]


def _csv_row(one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "right": "" if one["right"] is None else one["right"]}


def _number(value: float | None, digits: int = 4) -> float | None:
    """For JSON, which has no NaN."""
    return None if value is None or value != value else round(value, digits)


def _share(right: Sequence[bool]) -> float | None:
    return _number(sum(right) / len(right)) if right else None


def _percent(hits: int, count: int) -> str:
    return f"{hits}/{count} ({100 * hits / count:.0f} %)"
