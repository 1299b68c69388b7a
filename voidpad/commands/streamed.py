"""Generation that is watched pass by pass: live view, trace, or both."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from voidpad.commands.live import watch
from voidpad.decode.loop import Outcome, Step, decode
from voidpad.decode.plan import Plan
from voidpad.diagnose.trace import Recorder, Trace, write
from voidpad.errors import ConfigError
from voidpad.models import Model, Result


def stream(
    model: Model,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    *,
    seed: int,
    rows: int,
    live: Console | None,
    trace: dict[str, Any],
) -> list[Result]:
    """Decode the prompts, up to `rows` side by side; the results in order."""
    results: dict[int, Result] = {}
    traces: list[Trace] = []
    for fitted, keys in groups(model, prompts, plan, rows):
        recorder = None
        if trace["path"] is not None:
            recorder = Recorder(model, fitted, plan_name=trace["name"], seed=seed, detail=trace["detail"])
        steps: Iterable[Step] = decode(
            model.denoiser(),
            [prompts[key] for key in keys],
            model.roles,
            fitted,
            seed=seed,
            keys=keys,
            observe=recorder.observe if recorder else None,
        )
        for outcome in outcomes(watch(steps, model, live) if live else steps, recorder):
            results[outcome.key] = model.result(outcome, fitted)
        traces += recorder.traces if recorder else []
    if trace["path"] is not None:
        write(trace["path"], sorted(traces, key=lambda one: one.row))
    return [results[key] for key in sorted(results)]


def groups(
    model: Model, prompts: Sequence[Sequence[int]], plan: Plan, rows: int
) -> list[tuple[Plan, list[int]]]:
    """Prompts whose canvases have the same bound, at most `rows` together."""
    if rows < 1:
        raise ConfigError(f"rows={rows} leaves no room for a row; use at least 1.")
    found: dict[Plan, list[int]] = {}
    for key, prompt in enumerate(prompts):
        found.setdefault(model.fit(prompt, plan), []).append(key)
    return [(one, keys[i : i + rows]) for one, keys in found.items() for i in range(0, len(keys), rows)]


def outcomes(steps: Iterable[Step], recorder: Recorder | None) -> Iterator[Outcome]:
    """Rows as they end, with the time since the first pass; the recorder sees every pass."""
    begun = time.perf_counter()
    for step in steps:
        seconds = time.perf_counter() - begun
        if recorder:
            recorder(step, seconds=seconds)
        for outcome in step.finished.values():
            yield replace(outcome, seconds=seconds)
