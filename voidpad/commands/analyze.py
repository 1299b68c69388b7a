"""`voidpad analyze`: why answers come out short. `voidpad view`: recorded decodes as a page.

Each analysis reads its prompts or examples on the opened checkpoint, so that bad input is refused before the weights
are loaded. What it finds are records, printed as a table or as JSON and written as CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from voidpad.commands.options import (
    AsJson,
    ModelOptions,
    Picture,
    Raw,
    RowLimit,
    SamplingOptions,
    TokenLimit,
    grouped,
)
from voidpad.commands.prompts import from_lines
from voidpad.commands.ui import Record, bar, note, out, print_json, print_records, warn, write_csv
from voidpad.errors import ConfigError
from voidpad.files import refuse_own_source, store

if TYPE_CHECKING:
    from voidpad.diagnose.eos_prior import Curves
    from voidpad.diagnose.questions import Judge
    from voidpad.models import Checkpoint

app = typer.Typer(help="See why: EOS priors, EOS overflow, attention.", no_args_is_help=True)

PAPER_CANVAS = 512
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
class FindingOptions:
    """Where findings go beside the terminal."""

    plot: Picture = None
    csv: Path | None = Option(None, help="write the numbers to this file")
    as_json: AsJson = False

    def write(self, records: Sequence[Record], picture: Callable[[Any], Any]) -> None:
        """The records as CSV and the picture, those that are asked for; `picture` draws with diagnose/plots.py."""
        if self.csv is not None:
            write_csv(self.csv, records)
        if self.plot is not None:
            from voidpad.diagnose import plots  # imports matplotlib

            plots.save(picture(plots), self.plot)


@dataclass(frozen=True)
class QuestionOptions:
    """Prompts, and who can judge their answers."""

    prompt: list[str] | None = Argument(None, help="one or more prompts")
    file: Path | None = Option(None, help="prompts: text, or JSON lines with prompt or question, and answer")
    tasks: TaskNames = "steps,expr"  # the built-in tasks whose answers are judged without running a program
    count: int = Option(
        4,
        help="prompts, of a file or of the tasks. By default `analyze overflow` takes about two minutes on two CPU "
        "cores; whether at most 2 % overflow, as in a safe block size, shows only with 50 or more",
        min=1,
    )
    raw: Raw = False
    rows: RowLimit = 32
    tokens: TokenLimit = 16384

    def prompts(self, opened: Checkpoint) -> tuple[list[list[int]], list[Judge]]:
        """Token ids of the prompts, given or else of the built-in tasks, and what judges their answers."""
        from voidpad.diagnose.questions import Question, has_builtin_vocab, of_tasks, with_number

        given = [Question(prompt) for prompt in self.prompt or ()]
        for prompt, answer in from_lines(self.file)[: self.count] if self.file else ():
            given.append(Question(prompt) if answer is None else with_number(prompt, str(answer)))
        if not given:
            if not has_builtin_vocab(opened):
                raise ConfigError(f"{opened.name}: no prompt; give some as arguments or with --file.")
            given = of_tasks(_names(self.tasks), self.count)
        return [opened.encode(one.prompt, raw=self.raw) for one in given], [one.right for one in given]


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
    findings: FindingOptions,
    data: Path | None = Option(None, help="examples: JSON lines of messages, or a prepared file"),
    tasks: TaskNames = "",
    count: int = Option(600, help="examples", min=1),
    batch: int = Option(6, help="examples of a mini-batch, padded to its longest", min=1),
    canvas: int | None = Option(None, min=1, help="pad every answer to so many slots instead"),
    least: int = Option(100, min=1, help="examples a slot needs for its gap to count"),
    seed: int = Option(0, help="of the mini-batches"),
    raw: Raw = False,
    tokens: TokenLimit = 8192,
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
    with bar(len(pairs), shown=not findings.as_json, label="examples") as tick:
        curves = measure(model.denoiser(), model.roles, padded, tokens=tokens, tick=tick)
    slots, title = _slots(curves), f"{model.name}, {len(pairs)} examples"
    findings.write(slots, lambda plots: plots.prior(curves, title=title, least=least))
    gaps = [_gap(one, label, least) for one in curves for label in GAPS]
    if findings.as_json:
        found = {"model": model.name, "examples": len(pairs), "least": least, "gaps": gaps, "slots": slots}
        return print_json(found)
    print_records(gaps)
    note(f"{len(pairs)} examples; gaps over slots with at least {least} of them")
    if not any(one["slots"] for one in gaps):
        warn(f"no slot has {least} examples; raise --count, or lower --least below {len(pairs)}")


GAPS = {"|q - p|": ("model", "target"), "|q - F|": ("model", "cdf"), "|p - F|": ("target", "cdf")}


def _gap(one: Curves, label: str, least: int) -> Record:
    """Mean and largest distance of two of a token's curves."""
    mean, largest = one.gap(*GAPS[label], least=least)
    slots = int((one.count >= least).sum())
    return {"gap": f"{one.token.upper()} {label}", "mean": mean, "max": largest, "slots": slots}


def _slots(curves: Sequence[Curves]) -> list[Record]:
    """F, p and q of every token, slot by slot."""
    columns = {"slot": range(1, len(curves[0].count) + 1), "count": curves[0].count.tolist()}
    for one in curves:
        for name, part in {"F": one.cdf, "p": one.target, "q": one.model}.items():
            columns[f"{name}_{one.token}"] = [round(value, 6) for value in part.tolist()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@app.command()
@grouped
def overflow(
    source: AnalysedModel,
    decoding: SamplingOptions,
    asked: QuestionOptions,
    findings: FindingOptions,
    blocks: str | None = Option(None, help="block sizes, separated by commas"),
    trace: list[Path] | None = Option(
        None, help="read what `generate --trace` recorded instead of decoding (repeatable)"
    ),
    short: float = Option(0.05, min=0, max=1, help="overflow: at most this share of the canvas before EOS"),
) -> None:
    """Do answers drown in EOS? Trajectories, overflow by block size, and a verdict."""
    from voidpad.diagnose.eos_prior import void_tail
    from voidpad.diagnose.overflow import advice, rates, record, survey, trajectory, verdict
    from voidpad.diagnose.trace import read

    if trace:
        trajectories = [trajectory(one, short) for path in trace for one in read(path)]
        passes = [row for one in trajectories for row in one.passes()]
        findings.write(passes, lambda plots: plots.heat(trajectories[:3]))
        decodes = [one.facts() for one in trajectories]
        return print_json(decodes) if findings.as_json else print_records(decodes)
    opened = source.open()
    ids, judges = asked.prompts(opened)
    fields = decoding.fields()
    canvas = fields.pop("canvas", None) or _usual_canvas(opened)
    sizes = _block_sizes(blocks, fields.pop("block", None), canvas)
    name, wanted = decoding.plan or opened.default_plan, decoding.named()
    plans = [opened.plan(wanted, canvas=canvas, block=size, **fields) for size in sizes]
    # The first prompt, pass by pass, at the smallest and the largest block.
    watched = [opened.fit(ids[0], one) for one in ([plans[0], plans[-1]] if len(plans) > 1 else plans)]
    model = source.load(opened)
    with bar(len(ids) * len(plans), shown=not findings.as_json) as tick:
        answers = survey(
            model, ids, plans, judges=judges, short=short, rows=asked.rows, tokens=asked.tokens, tick=tick
        )
    void = void_tail(model.denoiser(), model.roles, ids[:16], canvas=plans[-1].length.canvas)
    traces = [replace(record(model, ids[0], one, name=name), row=row) for row, one in enumerate(watched)]
    trajectories, by_block = [trajectory(one, short) for one in traces], rates(answers)
    facts, decodes = [one.facts() for one in answers], [one.facts() for one in trajectories]
    findings.write(facts, lambda plots: plots.heat(trajectories))
    shares, said = [asdict(rate) for rate in by_block], verdict(by_block, void)
    advised = advice(
        by_block,
        void,
        model=source.model,
        adapter=source.adapter,
        plan=name,
        canvas=decoding.canvas,
    )
    if findings.as_json:
        found = {"model": model.name, "blocks": shares, "void_tail": void, "verdict": said, "advice": advised}
        return print_json({**found, "trajectories": decodes, "answers": facts})
    print_records(shares)
    note("the first prompt:")
    print_records(decodes)
    out.print(said, style="bold")
    for line in advised:
        out.print(line, markup=False)


def _block_sizes(text: str | None, block: int | None, canvas: int) -> list[int]:
    """The sizes of --blocks; without it --block, or those of 32, 64, 128 and L that divide L."""
    if text is None:
        usual = sorted({size for size in (32, 64, 128, canvas) if not canvas % size})
        return usual if block is None else [block]
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"blocks={text!r}: give whole numbers, separated by commas.") from None


@app.command()
@grouped
def attention(
    source: AnalysedModel,
    decoding: SamplingOptions,
    asked: QuestionOptions,
    findings: FindingOptions,
    queries: Literal["masked", "all"] = Option(
        "masked", help="who must not see EOS: masked slots, or everybody"
    ),
) -> None:
    """Is it attention to EOS? Decode as usual and with committed EOS hidden, and compare."""
    from voidpad.diagnose.attention import QUERIES, by_layer, probe_attention
    from voidpad.diagnose.overflow import rates, survey

    opened = source.open()
    ids, judges = asked.prompts(opened)
    # Block = canvas unless the user gave a block, because that is where overflow happens.
    canvas = decoding.canvas or _usual_canvas(opened)
    fields = {"block": canvas, **decoding.fields(), "canvas": canvas}
    plan = opened.plan(decoding.named() or "original", **fields)
    model = source.load(opened)
    watched = ids[:2]  # prompts whose attention weights are read
    fitted = model.fit(max(watched, key=len), plan)
    arms: list[Record] = []
    layers: list[Record] = []
    answers: list[Record] = []
    seen = []
    with bar(2 * len(ids), shown=not findings.as_json) as tick:
        for arm, forbid in {"seen": None, "hidden": QUERIES[queries]}.items():
            some = survey(
                model,
                ids,
                [plan],
                judges=judges,
                forbid=forbid,
                rows=asked.rows,
                tokens=asked.tokens,
                tick=tick,
            )
            answers += [{"EOS": arm, **one.facts()} for one in some]
            arms.append({"EOS": arm, **asdict(rates(some)[0])})
            seen.append(probe_attention(model, watched, fitted, forbid=forbid))
            masses, even = by_layer(seen[-1])
            named = {f"layer {number}": mass for number, mass in enumerate(masses, 1)}
            layers.append({"attention on EOS": arm, "spread evenly": even, **named})
    title = f"{model.name}: where masked slots look"
    findings.write(answers, lambda plots: plots.layers(seen[0], title=title))
    if findings.as_json:
        found = {"model": model.name, "queries": queries, "arms": arms, "layers": layers}
        return print_json({**found, "answers": answers})
    print_records(arms)
    print_records(layers)


def view(
    traces: list[Path] = Argument(..., help="trace files; the first two are shown side by side"),
    out: Path | None = Option(None, help="the page to write (default: the first trace's name, .html)"),
) -> None:
    """Replay recorded decodes in one self-contained page."""
    from voidpad.diagnose.page import Named, page
    from voidpad.diagnose.trace import read

    shown: list[Named] = []
    for path in traces:
        rows = read(path)
        names = [path.name if len(rows) == 1 else f"{path.name} row {trace.row}" for trace in rows]
        shown += [Named(name, trace) for name, trace in zip(names, rows, strict=True)]
    target, text = out or traces[0].with_suffix(".html"), page(shown)
    refuse_own_source(target, *traces)
    store(target, [text])
    print(f"{target}: {len(shown)} trace{'s' if len(shown) > 1 else ''}, {len(text) / 1e6:.1f} MB")
