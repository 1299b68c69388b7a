"""`voidpad analyze`: why answers come out short. eos-prior, overflow, attention and theory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voidpad.commands import analyze_inputs as inputs
from voidpad.commands import analyze_runs as runs
from voidpad.commands import analyze_tables as tables
from voidpad.commands.generate import bar, err, out
from voidpad.commands.loading import Device, Dtype, load_model
from voidpad.commands.options import RowLimit, TokenLimit, known_plan, takes_plan_fields
from voidpad.commands.outputs import file_to_write, picture_to_write
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.models import Model

app = typer.Typer(help="See why: EOS priors, overflow, attention, the theorems.", no_args_is_help=True)

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


def _loaded(model: str, adapter: str | None, *, device: str, dtype: str) -> Model:
    """The model; refused if it is block-causal, because the analyses are about slots that see the whole canvas."""
    loaded = load_model(model, adapter, device=device, dtype=dtype)
    loaded.require_full_attention("this analysis")
    return loaded


def _known_tasks(value: str) -> str:
    from voidpad.diagnose.questions import task_names

    task_names(inputs.names(value))
    return value


TaskNames = Annotated[
    str, typer.Option("--tasks", help="built-in tasks to take problems from", callback=_known_tasks)
]


class Queries(StrEnum):
    masked = "masked"
    all = "all"


@app.command("eos-prior")
def eos_prior(
    model: ModelName = "tiny-eos",
    adapter: Adapter = None,
    data: Data = None,
    tasks: TaskNames = inputs.EVERY,
    count: Annotated[int, typer.Option(help="examples", min=1)] = 600,
    batch: Annotated[int, typer.Option(help="examples of a mini-batch, padded to its longest")] = 6,
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

    if batch < 1 or count < 1:
        raise ConfigError(f"batch={batch} and count={count} must be at least 1.")
    inputs.check_there(data)
    loaded = _loaded(model, adapter, device=device, dtype=dtype)
    pairs = inputs.pairs(loaded, data=data, tasks=tasks, count=count, raw=raw)
    laid = (
        batched(pairs, shuffled(len(pairs), batch, seed=seed))
        if canvas is None
        else same_canvas(pairs, canvas)
    )
    with bar(len(pairs), shown=not as_json, label="examples") as tick:
        curves = measure(
            loaded.denoiser(), loaded.roles, laid, tokens=tokens, tick=lambda n: _repeat(tick, n)
        )
    if csv is not None:
        tables.write_csv(csv, tables.prior_rows(curves))
    if plot is not None:
        from voidpad.diagnose import plots

        plots.save(plots.prior(curves, title=f"{loaded.name}, {len(pairs)} examples", least=least), plot)
    if as_json:
        print(json.dumps(tables.prior_json(curves, loaded.name, len(pairs), least)))
    else:
        out.print(tables.prior_table(curves, least))
        err.print(f"{len(pairs)} examples; gaps over slots with at least {least} of them", style="dim")


def _repeat(tick: Any, times: int) -> None:
    for _ in range(times):
        tick()


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
    tasks: TaskNames = inputs.NUMBERS,
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
    from voidpad.diagnose.overflow import Rule, Setup, advice, rates, trajectory

    rule = Rule(short=short, filled=filled)
    if trace:
        _recorded(trace, rule, plot=plot, csv=csv, as_json=as_json)
        return
    from voidpad.diagnose.trace import write

    if blocks is not None:
        inputs.integers(blocks, "blocks")  # refused before anything is loaded
    given = inputs.given_questions(prompt, file=file, count=count)
    loaded = _loaded(model, adapter, device=device, dtype=dtype)
    questions = given or inputs.task_questions(loaded, tasks=tasks, count=count)
    ids = [loaded.encode(one.prompt, raw=raw) for one in questions]
    name, plans = runs.plans_of(loaded, plan, blocks, fields or {})
    setup = Setup(rule, rows, tokens)
    answers, summary = runs.surveyed(loaded, ids, plans, setup=setup, shown=not as_json)
    traces = runs.followed(loaded, ids[0], plans, name)
    trajectories = [trajectory(one, rule) for one in traces]
    if save_trace is not None:
        write(save_trace, traces)
    if plot is not None:
        tables.draw(trajectories, plot)
    if csv is not None:
        tables.write_csv(csv, [tables.answer_row(a) for a in answers])
    right = runs.correct(questions, answers)
    summary["advice"] = advice(
        rates(answers), summary["void_tail"], rule, model=model, adapter=adapter, plan=name
    )
    if as_json:
        print(json.dumps(tables.overflow_json(loaded.name, answers, right, summary, trajectories)))
        return
    out.print(tables.rate_table(answers, right))
    for one in trajectories:
        out.print(tables.trajectory_line(one))
    out.print(summary["verdict"], style="bold")
    for line in summary["advice"]:
        out.print(line, markup=False)


def _recorded(
    paths: Sequence[Path], rule: Any, *, plot: Path | None, csv: Path | None, as_json: bool
) -> None:
    """Trajectories of trace files."""
    from voidpad.diagnose.overflow import table, trajectory
    from voidpad.diagnose.trace import read

    trajectories = [trajectory(one, rule) for path in paths for one in read(path)]
    if csv is not None:
        tables.write_csv(csv, [row for one in trajectories for row in table(one)])
    if plot is not None:
        tables.draw(trajectories, plot)
    for one in trajectories:
        print(json.dumps(tables.trajectory_json(one))) if as_json else out.print(tables.trajectory_line(one))


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
    tasks: TaskNames = inputs.NUMBERS,
    count: Annotated[int, typer.Option(help="prompts, of a file or of the tasks", min=1)] = 32,
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
    from voidpad.diagnose.overflow import Setup, survey

    given = inputs.given_questions(prompt, file=file, count=count)
    loaded = _loaded(model, adapter, device=device, dtype=dtype)
    questions = given or inputs.task_questions(loaded, tasks=tasks, count=count)
    ids = [loaded.encode(one.prompt, raw=raw) for one in questions]
    chosen = runs.whole_canvas(loaded, plan, fields or {})
    arms = {}
    with bar(2 * len(ids), shown=not as_json) as tick:
        for arm, forbid in (("before", None), ("after", QUERIES[queries.value])):
            setup = Setup(rows=rows, tokens=tokens, forbid=forbid)
            arms[arm] = survey(loaded, ids, [chosen], setup=setup, tick=tick)
    right = {arm: runs.correct(questions, answers) for arm, answers in arms.items()}
    mass = runs.weighed(loaded, ids[:watch], chosen, queries.value, plot=plot)
    if csv is not None:
        tables.write_csv(csv, tables.arm_rows(arms, right))
    if as_json:
        print(json.dumps(tables.attention_json(loaded.name, queries.value, arms, right, mass)))
        return
    out.print(tables.arm_table(arms, right))
    if mass:
        out.print(tables.mass_table(mass))
    tables.print_answers(out, arms, right, show)


@app.command()
def theory(
    lengths: Annotated[
        str | None, typer.Option(help="answer lengths: 2,3,3,5,8 or with weights 1:.35,2:.25,5:.4")
    ] = None,
    data: Data = None,
    canvas: Annotated[int | None, typer.Option(min=1, help="canvas length")] = None,
    block: Annotated[int | None, typer.Option(min=1, help="block size; default: the canvas")] = None,
    padding: Annotated[
        list[str] | None, typer.Option(help="padding of the oracle model (repeatable); default: all")
    ] = None,
    symbols: Annotated[int, typer.Option(help="words of the oracle model, all equally likely")] = 10,
    model: Annotated[str | None, typer.Option(help="also compare this checkpoint with the theorems")] = None,
    adapter: Adapter = None,
    tasks: TaskNames = inputs.EVERY,
    count: Annotated[int, typer.Option(help="prompts for the comparison, or examples of --data", min=1)] = 64,
    draws: Annotated[int, typer.Option(min=1, help="answers drawn for each built-in prompt")] = 400,
    raw: Raw = False,
    tokens: TokenLimit = 8192,
    as_json: AsJson = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Theorems 1 and 2 on a length distribution: where EOS starts, how far it spreads, what decoding does."""
    from voidpad.diagnose.theory import LengthModel, agree, predict
    from voidpad.training.padding import POLICIES, policy

    if symbols < 1:
        raise ConfigError(f"symbols={symbols} must be at least 1.")
    if model is None and data is not None:
        raise ConfigError("--data needs the model whose tokens it is counted in; add --model NAME.")
    inputs.check_there(data)
    wanted = None if lengths is None else inputs.lengths(lengths)
    policies = padding or list(POLICIES)
    for name in policies:
        policy(name)  # an unknown one is refused before anything is loaded
    loaded = None if model is None else _loaded(model, adapter, device=device, dtype=dtype)
    cases = (
        [] if loaded is None else runs.compared(loaded, data, runs.AnalysisRequest(tasks, count, draws, raw))
    )
    if wanted is not None:
        distribution = wanted
    elif cases:
        pooled = [item for case in cases for item in case.lengths.weights]
        distribution = LengthModel.of([length for length, weight in pooled for _ in range(int(weight))])
    else:
        distribution = inputs.lengths("1:.35,2:.25,5:.4")
    size = canvas or runs.default_canvas(distribution, loaded)
    prediction = predict(distribution, size, block or size)
    stories = tables.stories(distribution, prediction, policies, symbols)
    agreement = None
    if loaded is not None:
        agreement = agree(
            loaded.denoiser(), loaded.roles, cases, canvas=size, block=prediction.block, tokens=tokens
        )
    if as_json:
        print(json.dumps(tables.theory_json(distribution, prediction, stories, agreement)))
        return
    tables.print_theory(out, distribution, prediction)
    out.print(tables.story_table(stories, size))
    if agreement is not None:
        out.print(tables.agreement_table(agreement, len(cases)))
