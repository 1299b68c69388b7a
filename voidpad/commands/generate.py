"""`voidpad generate`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from voidpad.commands.bars import counting
from voidpad.commands.loading import CausalBlock, Device, Dtype, FamilyName, Quantize, RoleIds, load_model
from voidpad.commands.options import (
    CacheName,
    PlanName,
    RowLimit,
    Seed,
    SpeedName,
    TokenLimit,
    chosen_plan,
    say_plan,
    takes_plan_fields,
)
from voidpad.commands.outputs import file_to_write
from voidpad.commands.process import fit_threads
from voidpad.commands.prompts import gather
from voidpad.decode.plan import Plan
from voidpad.decode.switches import APPROXIMATE_FIELDS
from voidpad.engine.events import Event
from voidpad.engine.speed import check_speed
from voidpad.errors import ConfigError
from voidpad.files import refuse_own_source
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.models import Model, Result
    from voidpad.models.model import Prompt

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


JSON_FIELDS = (
    "text",
    "tokens",
    "passes_decode",
    "passes_probe",
    "passes_shared",
    "canvas",
    "stop_reason",
    "seconds",
    "approximations",
)


class Detail(StrEnum):
    commits = "commits"
    probs = "probs"
    top5 = "top5"


@takes_plan_fields
def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="one or more prompts")] = None,
    model: Annotated[str, typer.Option(help="built-in name, hub id or folder")] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter, added without merging")] = None,
    plan: PlanName = None,
    file: Annotated[
        Path | None, typer.Option(help="prompts: text or JSON lines; - is standard input")
    ] = None,
    messages: Annotated[Path | None, typer.Option(help="JSON file with the turns of a conversation")] = None,
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="no chat template")] = False,
    seed: Seed = 0,
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per prompt")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="record every pass to this file", callback=file_to_write)
    ] = None,
    trace_detail: Annotated[Detail, typer.Option(help="what the trace holds")] = Detail.probs,
    live: Annotated[bool, typer.Option("--live", help="watch the canvas fill")] = False,
    cache: CacheName = None,
    speed: SpeedName = None,
    report_delta: Annotated[
        bool,
        typer.Option("--report-delta", help="decode exactly too, and print what the approximations change"),
    ] = False,
    compile_layers: Annotated[
        bool,
        typer.Option("--compile", help="compile the layers: exact, a minute at first, then faster on a GPU"),
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    family: FamilyName = None,
    roles: RoleIds = None,
    causal_block: CausalBlock = None,
    fields: dict[str, Any] | None = None,
) -> None:
    """Answer prompts with a masked diffusion language model."""
    if trace is not None:
        refuse_own_source(trace, file, messages)
    prompts = gather(prompt, file=file, messages=messages)
    wanted = None if plan is None else chosen_plan(plan)
    approximate = cache or any((fields or {}).get(name) for name in APPROXIMATE_FIELDS)
    if report_delta and not approximate:
        raise ConfigError(
            "--report-delta compares an approximation with exact decoding: give --speed fast, --cache, --threshold or "
            "another one (`voidpad plans` lists them)."
        )

    def check() -> None:
        from voidpad.models.load import default_plan_of, plan_of

        check_speed(speed, wanted or default_plan_of(model, adapter, family=family))
        plan_of(model, adapter, wanted, family=family, causal_block=causal_block, **(fields or {}))

    loaded = load_model(
        model,
        adapter,
        device=device,
        dtype=dtype,
        quantize=quantize,
        family=family,
        roles=roles,
        causal_block=causal_block,
        check=check,
    )
    fit_threads(loaded, rows=min(rows, len(prompts)))
    if compile_layers:
        with err.status("compiling"):  # before anything is timed
            for way in {cache, None} if report_delta else {cache}:
                warm: dict[str, Any] = {"plan": "original", "block": 32}
                warm = {} if loaded.card.causal_block else warm
                loaded.compiled().generate("compile", canvas=64, cache=way, **warm)
    built = loaded.plan(wanted, **(fields or {}))
    _warn(built, loaded)
    shared: dict[str, Any] = {"seed": seed, "rows": rows, "tokens": tokens, "raw": raw, "system": system}
    begun = time.perf_counter()
    with ExitStack() as open_views:
        listeners: list[Callable[[Event], None]] = []
        recorder = None
        if trace is not None:
            from voidpad.diagnose.trace import Recorder

            recorder = Recorder(
                loaded,
                plan_name=plan or loaded.default_plan,
                seed=seed,
                detail=trace_detail.value,
                cache=cache,
            )
            listeners.append(recorder)
        if live:
            from voidpad.commands.live import LiveView

            listeners.append(open_views.enter_context(LiveView(loaded, err)))

        def to_all(event: Event) -> None:
            for listen in listeners:
                listen(event)

        tick = open_views.enter_context(bar(len(prompts), shown=len(prompts) > 1 and not live))
        results = loaded.generate(
            prompts,
            built,
            cache=cache,
            progress=tick,
            observe=recorder.observe if recorder else None,
            listen=to_all if listeners else None,
            **shared,
        )
    spent = time.perf_counter() - begun
    if trace is not None and recorder is not None:
        recorder.write(trace)
    if report_delta:
        exact = loaded.plan(
            wanted, **{k: v for k, v in (fields or {}).items() if k not in APPROXIMATE_FIELDS}
        )
        begun = time.perf_counter()
        with bar(len(prompts), shown=len(prompts) > 1, label="exact") as tick:
            plain = loaded.generate(prompts, exact, progress=tick, **shared)
        _delta(results, plain, seconds=(spent, time.perf_counter() - begun))
    if plan is None:  # said only now: what is refused ends with one line
        say_plan(loaded.default_plan, loaded.card.padding)
    for result in results:
        show(result, loaded.roles, as_json=as_json, many=len(prompts) > 1)
    doubtful = next((result for result in results if _drowned(result, loaded.roles)), None)
    if doubtful is not None:
        options = {
            "model": model,
            "adapter": adapter,
            "plan": plan or loaded.default_plan,
            "raw": raw or None,
            **(fields or {}),
        }
        err.print(_explanation(doubtful, prompts[doubtful.key], options), style="yellow")


def _drowned(result: Result, roles: Roles) -> bool:
    """Whether an answer has no text, or next to nothing before its first EOS and nothing but EOS after."""
    from voidpad.diagnose.overflow import overflown

    return not result.text.strip() or overflown(result.ids, roles)


def _explanation(result: Result, prompt: Prompt, options: dict[str, Any]) -> str:
    """One line with the command that shows why an answer is empty or mostly EOS."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    words = ["voidpad", "analyze", "overflow", text]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    state = "mostly EOS" if result.text.strip() else "empty"
    return f"answer {result.key} is {state}; to see why: {shlex.join(words)}"


def show(result: Result, roles: Roles, *, as_json: bool, many: bool) -> None:
    if as_json:
        print(json.dumps({name: getattr(result, name) for name in JSON_FIELDS}))
        return
    if many:
        out.print(f"--- {result.key}", style="bold")
    print(result.text, flush=True)  # as it is: a console would turn :names: into pictures
    probes = f" + {result.passes_probe} probes" if result.passes_probe else ""
    shared = f" ({result.passes_shared} shared)" if result.passes_shared else ""
    size = sum(token not in roles.all() for token in result.tokens)  # as evaluation counts: without the EOS
    err.print(
        ("" if result.text.strip() else "empty answer; ")
        + f"{size} tokens, {result.passes_decode} passes{probes}{shared}, "
        f"canvas {result.canvas}, stopped: {result.stop_reason}, {result.seconds:.2f} s"
        + (f"; approximate: {', '.join(result.approximations)}" if result.approximations else ""),
        style="dim",
    )


def _delta(fast: list[Result], exact: list[Result], *, seconds: tuple[float, float]) -> None:
    """What the approximations changed, and what they saved."""
    same = sum(a.tokens == b.tokens for a, b in zip(fast, exact, strict=True))
    answers = sum(a.text == b.text for a, b in zip(fast, exact, strict=True))
    passes = [sum(r.passes_decode + r.passes_probe - r.passes_shared for r in run) for run in (fast, exact)]
    names = ", ".join(name for name in fast[0].approximations if name not in exact[0].approximations)
    err.print(
        f"against exact decoding, with {names}: tokens equal {same}/{len(exact)}, answers equal "
        f"{answers}/{len(exact)}, passes {passes[0]} against {passes[1]}, "
        f"{seconds[0]:.2f} s against {seconds[1]:.2f} s ({seconds[1] / seconds[0]:.2f}x)",
        style="cyan",
    )


def _warn(plan: Plan, model: Model) -> None:
    """Print what will run but means little, such as a VOID probability that was never trained."""
    for text in plan.length.warnings(model.card.padding):
        err.print(f"warning: {text}", style="yellow")


class bar:
    """A progress bar on standard error; calling the value it gives moves it by one."""

    def __init__(self, total: int, *, shown: bool, label: str = "decoding") -> None:
        self.progress = counting(err, shown=shown and err.is_terminal)
        self.task = self.progress.add_task(label, total=total)

    def __enter__(self) -> Any:
        self.progress.start()
        return lambda *_: self.progress.advance(self.task)

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
