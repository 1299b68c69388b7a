"""`voidpad eval` and `voidpad join`: score a model on benchmarks and leave a run folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from voidpad.commands.loading import Quantize
from voidpad.commands.options import (
    CacheName,
    PlanName,
    RowLimit,
    Seed,
    SpeedName,
    TokenLimit,
    chosen_plan,
    read_settings,
    say_plan,
)
from voidpad.commands.ui import counting, err, folder_to_write, out
from voidpad.engine.speed import check_speed, with_speed
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.evaluate import EvalConfig, Resources


class Stage(StrEnum):
    prepare = "prepare"
    answer = "answer"
    judge = "judge"


BenchmarkFolder = Annotated[
    Path | None, typer.Option("--data", help="folder with the benchmarks' files; else the hub")
]
IncludePath = Annotated[
    list[Path] | None, typer.Option(help="folder with YAML files of your own tasks; may be given again")
]
TrustTasks = Annotated[
    bool,
    typer.Option("--trust-tasks", help="let YAML files of tasks run code: functions they name, templates"),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code-execution", help="let generated programs run, in the sandbox")
]
WeakSandbox = Annotated[
    bool, typer.Option("--weak-sandbox", help="run them without namespaces, under seccomp and limits alone")
]
SandboxWorkers = Annotated[int, typer.Option(min=1, help="programs tested side by side")]
# Options that say where a run takes place; the others say what it is, and a folder knows that already.
_WHERE = {"out_dir", "stage", "as_json", "device", "rows", "tokens", "data", "workers"}
_WHERE |= {"allow_code_execution", "weak_sandbox", "include_path", "trust_tasks"}
_SETTABLE = {"fewshot", "fewshot_seed", "parity", "hide_eos"}  # fields of the evaluation that --set takes


def evaluate(
    context: typer.Context,
    out_dir: Annotated[
        Path,
        typer.Option(
            "--out", help="run folder; an interrupted run goes on from it", callback=folder_to_write
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            help="task names or YAML files, separated by commas: gsm8k, math500, humaneval, mbpp, mbpp_974, "
            "tiny_steps, tiny_expr, tiny_complete, tiny_write, tiny_json, tiny_search, or your own"
        ),
    ] = "",
    stage: Annotated[
        Stage | None,
        typer.Option(help="one stage alone; answer and judge take their settings from the folder"),
    ] = None,
    model: Annotated[str, typer.Option(help="built-in name, hub id or folder")] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter, added without merging")] = None,
    plan: PlanName = None,
    canvas: Annotated[int | None, typer.Option(min=1, help="canvas length at the start (plan field)")] = None,
    block: Annotated[int | None, typer.Option(min=1, help="block size (plan field)")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="any other field of the plan (`voidpad plans` lists them) or of the evaluation (fewshot, "
            "fewshot_seed, parity, hide_eos); may be given again",
        ),
    ] = None,
    items: Annotated[
        int | None, typer.Option("--limit", min=1, help="only the first so many items of each task")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="r/W: of those, items r, r+W, ...")] = None,
    seed: Seed = 0,
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, help="examples before the question; without it each task's own number"),
    ] = None,
    data: BenchmarkFolder = None,
    include_path: IncludePath = None,
    trust_tasks: TrustTasks = False,
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="no chat template")] = False,
    cache: CacheName = None,
    speed: SpeedName = None,
    merge: Annotated[bool, typer.Option("--merge", help="fold the adapter into the weights first")] = False,
    allow_code_execution: AllowCode = False,
    weak_sandbox: WeakSandbox = False,
    workers: SandboxWorkers = 1,
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda, cuda:1, mps; spread: one model over all GPUs; each, or a list such as "
            "cuda:0,cuda:1: a process with its own copy of the model on every GPU"
        ),
    ] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto")] = "auto",
    quantize: Quantize = None,
    as_json: Annotated[bool, typer.Option("--json", help="results as one JSON object")] = False,
) -> None:
    """Score a model on benchmarks: GSM8K, MATH500, HumanEval, MBPP, and the built-in model's four tasks."""
    from voidpad.evaluate import EvalConfig, Resources

    names, own_tasks, places = _chosen_tasks(tasks, include_path or [])
    resources = Resources(
        device=device,
        rows=rows,
        tokens=tokens,
        data=data,
        allow_code_execution=allow_code_execution,
        weak_sandbox=weak_sandbox,
        workers=workers,
        include_path=places,
        trust_tasks=trust_tasks,
    )
    config, say = None, lambda: None
    if stage in (None, Stage.prepare):
        fields, others = split_settings(settings or [], canvas=canvas, block=block)
        fields, cache = with_speed(speed, fields, cache)
        config = EvalConfig(
            model=model,
            tasks=names,
            plan=chosen_plan(plan) if plan else "void",  # until the checkpoint's own is known
            fields=fields,
            adapter=adapter,
            dtype=dtype,
            quantize=quantize,
            limit=items,
            shard=shard_of(shard),
            seed=seed,
            system=system,
            raw=raw,
            cache=cache,
            merge=merge,
            num_fewshot=num_fewshot,
            own_tasks=own_tasks,
            **others,
        )
        _check_place(stage, device, dtype, quantize)
        config.require_tasks()
        if plan is None:
            config, say = _with_usual_plan(config, stage)
        assert not isinstance(config.plan, dict)
        check_speed(speed, config.plan)
    else:
        _refuse_settings(context, stage, out_dir)
    results = _run(stage, config, out_dir, resources, say)
    if results is None:
        following = Stage.answer if stage is Stage.prepare else Stage.judge
        err.print(f"{out_dir}: next is `voidpad eval --stage {following} --out {out_dir}`", style="dim")
    else:
        _show(results, out_dir, as_json=as_json)


def join(
    parts: Annotated[
        list[Path], typer.Argument(help="run folders of `voidpad eval --shard r/W`", show_default=False)
    ],
    out_dir: Annotated[Path, typer.Option("--out", help="folder of the whole run", callback=folder_to_write)],
    data: BenchmarkFolder = None,
    include_path: IncludePath = None,
    trust_tasks: TrustTasks = False,
    allow_code_execution: AllowCode = False,
    weak_sandbox: WeakSandbox = False,
    workers: SandboxWorkers = 1,
    as_json: Annotated[bool, typer.Option("--json", help="results as one JSON object")] = False,
) -> None:
    """Join the parts of a divided evaluation into one run folder and score it; no model is needed."""
    from voidpad.evaluate import Resources
    from voidpad.evaluate import join as joined

    resources = Resources(
        data=data,
        allow_code_execution=allow_code_execution,
        weak_sandbox=weak_sandbox,
        workers=workers,
        include_path=tuple(include_path or ()),
        trust_tasks=trust_tasks,
    )
    _show(joined(parts, out_dir, resources=resources), out_dir, as_json=as_json)


def split_settings(given: Sequence[str], **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of --set: fields of the plan, with the ones that are given as options, and of the evaluation."""
    found = read_settings(given, **fields)
    others = {name: found.pop(name) for name in _SETTABLE if name in found}
    return found, others


def _show(results: dict[str, Any], out_dir: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results))
        return
    out.width = max(out.width, 100)  # a narrow terminal wraps the table; no number is left out
    out.print(_table(results))
    if results["provenance"]["approximations"]:
        err.print(f"approximate: {', '.join(results['provenance']['approximations'])}", style="yellow")
    err.print(f"run folder: {out_dir}", style="dim")


def _chosen_tasks(
    tasks: str, include_path: list[Path]
) -> tuple[tuple[str, ...], dict[str, str], tuple[Path, ...]]:
    """Names of tasks, digests of those from YAML files, and these files' places. The answer stage needs no lm-eval."""
    words = tuple(word.strip() for word in tasks.split(",") if word.strip())
    if not include_path and not any(word.endswith((".yaml", ".yml")) for word in words):
        return words, {}, ()
    from voidpad.evaluate.prepare import choose_tasks

    return choose_tasks(words, include_path)


def _check_place(stage: Stage | None, device: str, dtype: str, quantize: str | None) -> None:
    """Refuse a device or a number format; requests may be prepared on a machine without the device."""
    from voidpad.evaluate.answer import devices_of
    from voidpad.models.device import DeviceConfig

    if stage is Stage.prepare:
        DeviceConfig(dtype=dtype)
    else:
        for one in devices_of(device):
            DeviceConfig(one, dtype, quantize)


def _with_usual_plan(config: EvalConfig, stage: Stage | None) -> tuple[EvalConfig, Callable[[], None]]:
    """The config with the plan that fits the checkpoint's padding, and a function that says which plan it is.

    Requests may be prepared where the checkpoint is not, but not without a plan.
    """
    from voidpad.commands.loading import open_model
    from voidpad.evaluate.config import on_this_machine

    if stage is Stage.prepare and not on_this_machine(config.model, config.adapter):
        raise ConfigError(
            f"plan: {config.model} is not on this machine, so its padding is unknown; name --plan"
        )
    opened = open_model(config.model, config.adapter)
    usual = opened.default_plan
    return config.updated(plan=usual), lambda: say_plan(usual, opened.card.padding)


def _refuse_settings(context: typer.Context, stage: Stage, out_dir: Path) -> None:
    """Options that a folder already decides are refused: silently ignoring them would mislead."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if parameter.name not in _WHERE and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"{parameter.opts[0]}: --stage {stage} takes it from {out_dir}/config.json; leave it out"
            )


def _run(
    stage: Stage | None,
    config: EvalConfig | None,
    out_dir: Path,
    resources: Resources,
    say: Callable[[], None],
) -> dict[str, Any] | None:
    """All stages, or one of them; the results where there are any. `say` is called once nothing was refused."""
    from voidpad.evaluate.folder import RunFolder, read_run
    from voidpad.evaluate.run import answer, judge, prepare
    from voidpad.evaluate.run import evaluate as run_all

    if stage is Stage.prepare:
        assert config is not None
        requests = prepare(config, RunFolder(out_dir), resources=resources)
        say()
        err.print(f"{out_dir}: {len(requests)} requests", style="dim")
        return None
    if stage is Stage.judge:
        return judge(read_run(out_dir), resources=resources)
    bar = counting()
    shown = bar.add_task("examples", total=None)
    there: list[int] = []

    def show(done: int, total: int) -> None:
        if not there:
            there.append(done)
            say()
            if done:
                err.print(f"{out_dir}: {done} of {total} answers are there already", style="dim")
        bar.start()  # only now: what fails before the first answer shows no bar
        bar.update(shown, completed=done, total=total)

    try:
        if stage is Stage.answer:
            answer(read_run(out_dir), resources=resources, progress=show)
            return None
        assert config is not None
        return run_all(config, out_dir, resources=resources, progress=show)
    except KeyboardInterrupt:
        err.print(f"{out_dir} keeps what was answered; the same command goes on from there", style="dim")
        raise
    finally:
        if bar.live.is_started:  # stopping a bar that never started prints an empty line
            bar.stop()


def shard_of(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    numbers = re.fullmatch(r"(\d+)/(\d+)", text)
    if not numbers:
        raise ConfigError(f"shard={text!r} is not of the form r/W, such as 0/4")
    return int(numbers[1]), int(numbers[2])


def _table(results: dict[str, Any]) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for head in ("task", "score", "95 %", "n", "passes", "probes", "canvas", "answer", "cap %", "no EOS %"):
        shown.add_column(head, justify="left" if head == "task" else "right", no_wrap=True)
    for name, task in results["tasks"].items():
        low, high = task["interval"]
        numbers = [f"{task[key]:.1f}" for key in ("passes_decode", "passes_probe", "canvas", "answer_tokens")]
        shares = [f"{100 * task[key]:.1f}" for key in ("share_at_cap", "share_without_eos")]
        size = str(task["n"]) if task["n"] == task["test_size"] else f"{task['n']}/{task['test_size']}"
        shown.add_row(name, f"{task['score']:.2f}", f"{low:.1f}-{high:.1f}", size, *numbers, *shares)
    return shown
