"""`voidpad generate` and `voidpad plans`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from voidpad.commands.bars import counting
from voidpad.commands.loading import Device, Dtype, FamilyName, Quantize, RoleIds, load_model
from voidpad.commands.options import takes_plan_fields
from voidpad.commands.outputs import file_to_write
from voidpad.commands.prompts import gather
from voidpad.decode.length import Trimmed, VoidExpansion
from voidpad.decode.plan import HELP, PRESETS, Plan, describe
from voidpad.errors import ConfigError
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.models import Model, Result

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


APPROXIMATE = ("threshold", "factor", "trim")  # plan fields that --report-delta leaves out of the exact run


class Detail(StrEnum):
    commits = "commits"
    probs = "probs"
    top5 = "top5"


@takes_plan_fields
def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="one or more prompts")] = None,
    model: Annotated[str, typer.Option(help="built-in name, hub id or folder")] = "tiny-void",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter, added without merging")] = None,
    plan: Annotated[str, typer.Option(help="how to decode; `voidpad plans` lists them")] = "void",
    file: Annotated[
        Path | None, typer.Option(help="prompts: text or JSON lines; - is standard input")
    ] = None,
    messages: Annotated[Path | None, typer.Option(help="JSON file with the turns of a conversation")] = None,
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="no chat template")] = False,
    seed: Annotated[int, typer.Option(help="for temperature > 0", min=0, max=2**63 - 1)] = 0,
    rows: Annotated[int, typer.Option(help="most rows in one pass")] = 32,
    tokens: Annotated[int, typer.Option(help="most tokens in one pass")] = 16384,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per prompt")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="record every pass to this file", callback=file_to_write)
    ] = None,
    trace_detail: Annotated[Detail, typer.Option(help="what the trace holds")] = Detail.probs,
    live: Annotated[bool, typer.Option("--live", help="watch the canvas fill")] = False,
    cache: Annotated[
        str | None, typer.Option(help="prefix, dual or dual:4: keep keys and values (approximate)")
    ] = None,
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
    fields: dict[str, Any] | None = None,
) -> None:
    """Answer prompts with a masked diffusion language model."""
    prompts = gather(prompt, file=file, messages=messages)
    approximate = cache or any((fields or {}).get(name) for name in APPROXIMATE)
    if report_delta and not approximate:
        given = " or ".join(f"--{name}" for name in ("cache", *APPROXIMATE))
        raise ConfigError(f"--report-delta compares an approximation with exact decoding: give {given}.")
    if (live or trace is not None) and (cache or report_delta):
        raise ConfigError("--cache and --report-delta do not go with --live and --trace; drop one of them.")
    loaded = load_model(
        model, adapter, device=device, dtype=dtype, quantize=quantize, family=family, roles=roles
    )
    if compile_layers:
        with err.status("compiling"):  # before anything is timed
            for way in {cache, None} if report_delta else {cache}:
                loaded.compiled().generate("compile", "original", canvas=64, block=32, cache=way)
    built = loaded.plan(plan, **(fields or {}))
    warn(built, loaded)
    if live or trace is not None:
        from voidpad.commands.streamed import stream

        recorded = {"path": trace, "detail": trace_detail.value, "name": plan}
        ids = [loaded.encode(p, system=system, raw=raw) for p in prompts]
        screen = err if live else None
        results = stream(loaded, ids, built, seed=seed, rows=rows, live=screen, trace=recorded)
    else:
        shared: dict[str, Any] = {"seed": seed, "rows": rows, "tokens": tokens, "raw": raw, "system": system}
        begun = time.perf_counter()
        with bar(len(prompts), shown=len(prompts) > 1) as tick:
            results = loaded.generate(prompts, built, cache=cache, progress=tick, **shared)
        spent = time.perf_counter() - begun
        if report_delta:
            exact = loaded.plan(plan, **{k: v for k, v in (fields or {}).items() if k not in APPROXIMATE})
            begun = time.perf_counter()
            with bar(len(prompts), shown=len(prompts) > 1, label="exact") as tick:
                plain = loaded.generate(prompts, exact, progress=tick, **shared)
            delta(results, plain, seconds=(spent, time.perf_counter() - begun))
    for result in results:
        show(result, loaded.roles, as_json=as_json, many=len(prompts) > 1)


def show(result: Result, roles: Roles, *, as_json: bool, many: bool) -> None:
    if as_json:
        print(json.dumps({key: value for key, value in asdict(result).items() if key not in ("ids", "key")}))
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
        + (f"; approximate: {', '.join(result.accelerated)}" if result.accelerated else ""),
        style="dim",
    )


def delta(fast: list[Result], exact: list[Result], *, seconds: tuple[float, float]) -> None:
    """What the approximations changed, and what they saved."""
    same = sum(a.tokens == b.tokens for a, b in zip(fast, exact, strict=True))
    answers = sum(a.text == b.text for a, b in zip(fast, exact, strict=True))
    passes = [sum(r.passes_decode + r.passes_probe - r.passes_shared for r in run) for run in (fast, exact)]
    names = ", ".join(name for name in fast[0].accelerated if name not in exact[0].accelerated)
    err.print(
        f"against exact decoding, with {names}: tokens equal {same}/{len(exact)}, answers equal "
        f"{answers}/{len(exact)}, passes {passes[0]} against {passes[1]}, "
        f"{seconds[0]:.2f} s against {seconds[1]:.2f} s ({seconds[1] / seconds[0]:.2f}x)",
        style="cyan",
    )


def warn(plan: Plan, model: Model) -> None:
    """What will run and mean little: a VOID probability nobody trained, a test that holds by itself."""
    rule = plan.length.inner if isinstance(plan.length, Trimmed) else plan.length
    if not isinstance(rule, VoidExpansion):
        return
    if model.card.padding not in ("void", None):
        err.print(
            f"warning: {model.name} was trained with {model.card.padding} padding; the VOID probability that "
            "VoidExpansion reads means nothing there.",
            style="yellow",
        )
    if rule.tau_gap <= -rule.tau_nonvoid:
        err.print(
            f"warning: tau_gap={rule.tau_gap} cannot bind with tau_nonvoid={rule.tau_nonvoid}; "
            "only the non-VOID test decides the canvas.",
            style="yellow",
        )


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


def plans(
    name: Annotated[str | None, typer.Argument(help="show the fields of this plan")] = None,
    family: Annotated[str, typer.Option(help="llada or dream: defaults differ")] = "llada",
    model: Annotated[str | None, typer.Option(help="use this checkpoint's family and calibration")] = None,
) -> None:
    """List the ways to decode, or the fields of one of them."""
    if family not in ("llada", "dream"):
        raise ConfigError(f"family={family!r} is unknown; use llada or dream.")
    calibration = None
    if model is not None:
        from voidpad.models import load

        loaded = load(model)
        family, calibration = loaded.family.name, loaded.card.calibration
    if name is None:
        table = Table("plan", "what it does", box=None)
        for key, preset in PRESETS.items():
            table.add_row(key, preset.about)
        table.add_row("<plan>@authors", "with the switches as the authors' code has them")
        out.print(table)
        return
    _, values = describe(name, family=family, calibration=calibration)
    table = Table("option", "default", "meaning", box=None)
    for key, value in values.items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        table.add_row("--" + key.replace("_", "-"), shown, HELP[key])
    out.print(table)
