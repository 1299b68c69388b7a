"""`voidpad eval` and `voidpad join`: score a model on benchmarks and leave a run folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from voidpad.commands.options import (
    AsJson,
    ModelOptions,
    PlanOptions,
    Raw,
    RowLimit,
    Seed,
    SpeedOptions,
    SystemPrompt,
    TaskOptions,
    TokenLimit,
    grouped,
    say_plan,
)
from voidpad.commands.ui import counting, err, note, print_json, print_records
from voidpad.errors import ConfigError
from voidpad.evaluate.tasks import known_tasks

if TYPE_CHECKING:
    from voidpad.evaluate import EvalConfig


class Stage(StrEnum):
    prepare = "prepare"
    answer = "answer"
    judge = "judge"

    @property
    def following(self) -> Stage:
        return Stage.answer if self is Stage.prepare else Stage.judge


SETTABLE = {"fewshot", "fewshot_seed", "parity", "hide_eos"}  # fields of the evaluation that --set takes


@dataclass(frozen=True)
class RequestOptions:
    """Which items are asked, and how, by the names of `EvalConfig`."""

    limit: int | None = Option(None, min=1, help="only the first so many items of each task")
    shard: str | None = Option(None, help="r/W: of those, items r, r+W, ...")
    seed: Seed = 0
    num_fewshot: int | None = Option(
        None, min=0, help="examples before the question; default: the task's own"
    )
    system: SystemPrompt = None
    raw: Raw = False
    merge: bool = Option(False, "--merge", help="fold the adapter into the weights first")


@grouped
def evaluate(
    context: typer.Context,
    source: ModelOptions,
    decoding: PlanOptions,
    fast: SpeedOptions,
    asked: RequestOptions,
    judging: TaskOptions,
    out_dir: Path = Option(..., "--out", help="run folder; an interrupted run goes on from it"),
    tasks: str = Option(
        "",
        help=f"names or YAML files, separated by commas: {', '.join(known_tasks())}, or your own",
    ),
    stage: Stage | None = Option(None, help="one stage; answer and judge read their settings from --out"),
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    as_json: AsJson = False,
) -> None:
    """Score a model on benchmarks: GSM8K, MATH500, HumanEval, MBPP, and the built-in model's tasks.

    --set also takes fewshot, fewshot_seed, parity and hide_eos.
    """
    from voidpad.evaluate import run
    from voidpad.evaluate.folder import RunFolder, read_run
    from voidpad.evaluate.prepare import choose_tasks

    words = [word.strip() for word in tasks.split(",") if word.strip()]
    names, own_tasks = choose_tasks(words)
    resources = judging.resources(device=source.device, rows=rows, tokens=tokens)
    if stage in (Stage.answer, Stage.judge):
        _refuse_settings(context, stage, out_dir)
        folder = read_run(out_dir)
        if stage is Stage.judge:
            return _show(run.judge(folder, resources=resources), out_dir, as_json=as_json)
        with _progress(out_dir) as show:
            run.answer(folder, resources=resources, progress=show)
    else:
        if asked.shard is not None and not re.fullmatch(r"\d+/\d+", asked.shard):
            raise ConfigError(f"shard={asked.shard!r}: write r/W, such as 0/4 for the first of four parts.")
        shard = asked.shard and tuple(asked.shard.split("/"))
        settings = {**vars(asked), "shard": shard, "tasks": names, "own_tasks": own_tasks}
        config = _config(source, decoding, fast, settings, stage)
        if stage is None:
            with _progress(out_dir) as show:
                results = run.evaluate(config, out_dir, resources=resources, progress=show)
            return _show(results, out_dir, as_json=as_json)
        requests = run.prepare(config, RunFolder(out_dir), resources=resources)
        note(f"{out_dir}: {len(requests)} requests")
    note(f"{out_dir}: next is `voidpad eval --stage {stage.following} --out {out_dir}`")


@grouped
def join(
    judging: TaskOptions,
    parts: list[Path] = Argument(..., help="run folders of `voidpad eval --shard r/W`"),
    out_dir: Path = Option(..., "--out", help="folder of the whole run"),
    as_json: AsJson = False,
) -> None:
    """Join the parts of a divided evaluation into one run folder and score it; no model is needed."""
    from voidpad.evaluate import join as joined

    _show(joined(parts, out_dir, resources=judging.resources()), out_dir, as_json=as_json)


def _config(
    source: ModelOptions,
    decoding: PlanOptions,
    fast: SpeedOptions,
    settings: dict[str, Any],
    stage: Stage | None,
) -> EvalConfig:
    """The evaluation that the options describe; a line says which plan was chosen for a user who named none.

    Requests may be prepared on a machine without the device and without the checkpoint, but not without a plan.
    """
    from voidpad.evaluate import EvalConfig
    from voidpad.models import DeviceConfig

    if stage is None:
        DeviceConfig(source.device, source.dtype, source.quantize)  # refused before data are read
    settings |= {name: getattr(source, name) for name in ("model", "adapter", "dtype", "quantize")}
    fields = decoding.fields()
    settings |= {name: fields.pop(name) for name in SETTABLE if name in fields}
    config = EvalConfig(**settings, fields=fields, cache=fast.cache)
    plan = decoding.named()
    if plan is None:
        if stage is Stage.prepare and config.with_weights().weights is None:
            raise ConfigError(
                f"plan: {source.model} is not on this machine, so its padding is unknown; name --plan"
            )
        opened = source.open()
        plan = opened.default_plan
        say_plan(plan, opened.card.padding)
    fields, cache = fast.apply(plan, fields)
    return config.updated(plan=plan, fields=fields, cache=cache)


def _refuse_settings(context: typer.Context, stage: Stage, out_dir: Path) -> None:
    """Refuse options that a folder already decides; those that say where a run takes place are welcome."""
    from voidpad.evaluate import Resources

    welcome = {"out_dir", "stage", "as_json", *(field.name for field in fields(Resources))}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if parameter.name not in welcome and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"{parameter.opts[0]}: --stage {stage} takes it from {out_dir}/config.json; leave it out"
            )


@contextmanager
def _progress(out_dir: Path) -> Iterator[Callable[[int, int], None]]:
    """What a run calls with the number of answers and of requests: a bar, shown from the first answer on."""
    bar = counting()
    shown = bar.add_task("examples", total=None)

    def show(done: int, total: int) -> None:
        if not bar.live.is_started:
            if done:
                note(f"{out_dir}: {done} of {total} answers are there already")
            bar.start()
        bar.update(shown, completed=done, total=total)

    try:
        yield show
    except KeyboardInterrupt:
        note(f"{out_dir} keeps what was answered; the same command goes on from there")
        raise
    finally:
        if bar.live.is_started:
            bar.stop()


def _show(results: dict[str, Any], out_dir: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(results)
        return
    names = ("passes_decode", "passes_probe", "canvas", "answer_tokens", "share_at_cap", "share_without_eos")
    rows = []
    for name, task in results["tasks"].items():
        low, high = task["interval"]
        size = str(task["n"]) if task["n"] == task["test_size"] else f"{task['n']}/{task['test_size']}"
        head = {"task": name, "score": f"{task['score']:.2f}", "95 %": f"{low:.1f}-{high:.1f}", "n": size}
        rows.append(head | {name.removeprefix("passes_"): task[name] for name in names})
    print_records(rows)
    if results["provenance"]["approximations"]:
        err.print(f"approximate: {', '.join(results['provenance']['approximations'])}", style="yellow")
    note(f"run folder: {out_dir}")
