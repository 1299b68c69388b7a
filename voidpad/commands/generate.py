"""`voidpad generate`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from voidpad.commands.loading import (
    Device,
    Dtype,
    Quantize,
    check_device,
    load_model,
    load_opened,
    open_model,
)
from voidpad.commands.options import (
    DIRECT_FIELDS,
    CacheName,
    PlanName,
    Seed,
    SpeedName,
    chosen_plan,
    say_plan,
    takes_plan_fields,
)
from voidpad.commands.prompts import gather, read
from voidpad.commands.ui import bar, err, file_to_write, out
from voidpad.decode.plan import Plan
from voidpad.decode.presets import APPROXIMATE_FIELDS
from voidpad.engine.events import Event
from voidpad.engine.speed import check_speed
from voidpad.errors import ConfigError, format_validation_error
from voidpad.files import read_json, refuse_own_source
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.constrain import Constraint
    from voidpad.models import Model, Result
    from voidpad.models.text import Messages


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


class Others(BaseModel):
    """What --set reaches beside the fields of the plan: seldom needed, so without options of their own."""

    model_config = ConfigDict(extra="forbid")
    rows: int = Field(default=32, ge=1)  # most rows in one forward pass
    tokens: int = Field(default=16384, ge=1)  # most tokens of these rows
    trace_detail: Literal["commits", "probs", "top5"] = "probs"
    report_delta: bool = False  # decode exactly too, and print what the approximations change
    compile: bool = False  # compile the layers: exact, a minute at first, then faster on a GPU
    family: str | None = None  # of a checkpoint whose config does not say it
    causal_block: int | None = Field(default=None, ge=1)  # of a block-causal checkpoint that does not say it
    roles: str | None = None  # token ids by role, such as void=56940
    length: Literal["fixed", "cal", "void-gap"] = "cal"  # of --fill: how the length of a gap is chosen
    slots: int = Field(default=16, ge=1, le=2048)  # of --fill with length=fixed


@takes_plan_fields(also=tuple(Others.model_fields))
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
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per prompt")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="record every pass to this file", callback=file_to_write)
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="watch the canvas fill")] = False,
    cache: CacheName = None,
    speed: SpeedName = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    regex: Annotated[
        str | None, typer.Option(help="every answer matches this regular expression as a whole")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="every answer is JSON that the schema in this file allows")
    ] = None,
    choice: Annotated[
        str | None, typer.Option(help="every answer is one of these texts, separated by commas")
    ] = None,
    fill: Annotated[
        Path | None, typer.Option(help="write the gaps of this text: [[gap]], [[gap:12]], [[gap:4-32]]")
    ] = None,
    fields: dict[str, Any] | None = None,
    others: dict[str, Any] | None = None,
) -> None:
    """Answer prompts with a masked diffusion language model, or fill the gaps of a text."""
    rest = _others(others or {})
    if fill is not None:
        constraint = _constraint(regex, json_schema, choice)
        loaded = load_model(model, adapter, device=device, dtype=dtype, quantize=quantize)
        _fill(loaded, read(fill), plan, rest, fields or {}, constraint, seed=seed, as_json=as_json)
        return
    constraint = _constraint(regex, json_schema, choice)
    if trace is not None:
        refuse_own_source(trace, file, messages)
    prompts = gather(prompt, file=file, messages=messages)
    wanted = None if plan is None else chosen_plan(plan)
    approximate = cache or any((fields or {}).get(name) for name in APPROXIMATE_FIELDS)
    if rest.report_delta and not approximate:
        raise ConfigError(
            "report_delta compares an approximation with exact decoding: give --speed fast, --cache, --threshold or "
            "another one (`voidpad plans` lists them)."
        )

    check_device(device, dtype, quantize)
    opened = open_model(
        model,
        adapter,
        family=rest.family,
        roles=rest.roles.split() if rest.roles else None,
        causal_block=rest.causal_block,
    )
    check_speed(speed, wanted or opened.default_plan)
    built = opened.plan(wanted, **(fields or {}))
    ready = [opened.prepare(one, built, raw=raw, system=system) for one in prompts]
    if constraint is not None:
        opened.constrain(constraint, built)  # refused before weights are read
    loaded = load_opened(opened, device, dtype, quantize)
    if rest.compile:
        with err.status("compiling"):  # before anything is timed
            for way in {cache, None} if rest.report_delta else {cache}:
                warm: dict[str, Any] = {"plan": "original", "block": 32}
                warm = {} if loaded.card.causal_block else warm
                loaded.compiled().generate("compile", canvas=64, cache=way, **warm)
    _warn(built, loaded)
    shared: dict[str, Any] = {
        "seed": seed,
        "rows": rest.rows,
        "tokens": rest.tokens,
        "constraint": constraint,
    }
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
                detail=rest.trace_detail,
                cache=cache,
            )
            listeners.append(recorder)
        if live:
            from voidpad.commands.live import LiveView

            listeners.append(open_views.enter_context(LiveView(loaded, err)))

        def to_all(event: Event) -> None:
            for listen in listeners:
                listen(event)

        tick = open_views.enter_context(
            bar(len(prompts), label="decoding", shown=len(prompts) > 1 and not live)
        )
        results = loaded.generate(
            ready,
            cache=cache,
            progress=tick,
            observe=recorder.observe if recorder else None,
            listen=to_all if listeners else None,
            **shared,
        )
    spent = time.perf_counter() - begun
    if trace is not None and recorder is not None:
        recorder.write(trace)
    if rest.report_delta:
        exact = loaded.plan(
            wanted, **{k: v for k, v in (fields or {}).items() if k not in APPROXIMATE_FIELDS}
        )
        begun = time.perf_counter()
        with bar(len(prompts), shown=len(prompts) > 1, label="exact") as tick:
            plain = loaded.generate(prompts, exact, raw=raw, system=system, progress=tick, **shared)
        _delta(results, plain, seconds=(spent, time.perf_counter() - begun))
    if plan is None:  # said only now: what is refused ends with one line
        say_plan(loaded.default_plan, loaded.card.padding)
    for result in results:
        show(result, loaded.roles, as_json=as_json, many=len(prompts) > 1)
    doubtful = next((result for result in results if _drowned(result, loaded.roles)), None)
    if doubtful is not None:
        options = {"model": model, "adapter": adapter, "plan": plan or loaded.default_plan}
        err.print(
            _explanation(doubtful, prompts[doubtful.key], options, fields or {}, raw=raw), style="yellow"
        )


def _others(given: dict[str, Any]) -> Others:
    try:
        return Others(**given)
    except ValidationError as error:
        raise ConfigError(f"--set {format_validation_error(error)}.") from None


def _fill(
    model: Model,
    template: str,
    plan: str | None,
    rest: Others,
    fields: dict[str, Any],
    constraint: Constraint | None,
    *,
    seed: int,
    as_json: bool,
) -> None:
    """Fill a template and print the whole text; with --json also each gap, its slots and the passes."""
    done = model.fill(
        template, plan, length=rest.length, slots=rest.slots, constraint=constraint, seed=seed, **fields
    )
    if as_json:
        values = {name: getattr(done, name) for name in ("text", "gaps", "slots", "passes_probe")}
        print(json.dumps({**values, "passes_decode": done.result.passes_decode}))
        return
    print(done.text, end="" if done.text.endswith("\n") else "\n", flush=True)
    sizes = ", ".join(map(str, done.slots))
    err.print(
        f"gaps of {sizes} tokens, {done.result.passes_decode} passes + {done.passes_probe} probes",
        style="dim",
    )


def _constraint(expression: str | None, schema: Path | None, choices: str | None) -> Constraint | None:
    """The constraint that the options ask for, if any."""
    from voidpad.constrain import choice, json_schema, regex

    if sum(option is not None for option in (expression, schema, choices)) > 1:
        raise ConfigError("--regex, --json-schema and --choice exclude each other; give one of them.")
    if expression is not None:
        return regex(expression)
    if schema is not None:
        return json_schema(read_json(schema, ConfigError))
    return choice(choices.split(",")) if choices is not None else None


def _drowned(result: Result, roles: Roles) -> bool:
    """Whether an answer has no text, or next to nothing before its first EOS and nothing but EOS after."""
    from voidpad.diagnose.overflow import overflown

    return result.constraint is None and (not result.text.strip() or overflown(result.ids, roles))


def _explanation(
    result: Result,
    prompt: str | Messages,
    options: dict[str, str | None],
    fields: dict[str, Any],
    *,
    raw: bool,
) -> str:
    """One line: what helps an answer that is empty or mostly EOS, and the command that shows why it is."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    words = ["voidpad", "analyze", "overflow", text, *(["--raw"] if raw else [])]
    for name, value in options.items():
        words += [f"--{name}", value] if value is not None else []
    for name, value in fields.items():
        told = value if isinstance(value, str) else json.dumps(value)
        words += [f"--{name}", told] if name in DIRECT_FIELDS else ["--set", f"{name}={told}"]
    state = "mostly EOS" if result.text.strip() else "empty"
    helps = "" if options["plan"] == "eos-last" else "; --plan eos-last may help"
    return f"answer {result.key} is {state}{helps}; to see why: {shlex.join(words)}"


def show(result: Result, roles: Roles, *, as_json: bool, many: bool) -> None:
    if as_json:
        values = {name: getattr(result, name) for name in JSON_FIELDS}
        if result.constraint is not None:
            values["constraint"] = asdict(result.constraint)
        print(json.dumps(values))
        return
    if many:
        out.print(f"--- {result.key}", style="bold")
    print(result.text, flush=True)  # as it is: a console would turn :names: into pictures
    probes = f" + {result.passes_probe} probes" if result.passes_probe else ""
    shared = f" ({result.passes_shared} shared)" if result.passes_shared else ""
    size = sum(token not in roles.all() for token in result.tokens)  # as evaluation counts: without the EOS
    err.print(
        ("" if result.text.strip() else "empty answer; ")
        + ("" if result.constraint is None or result.constraint.matched else "does not match; ")
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
