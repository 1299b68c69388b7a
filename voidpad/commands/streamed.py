"""Generation that is watched pass by pass: live view, trace, or both."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from voidpad.commands.live import watch
from voidpad.decode.loop import Step, decode
from voidpad.decode.plan import Plan
from voidpad.models import Model, Result
from voidpad.trace import Recorder


def stream(
    model: Model,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    *,
    seed: int,
    live: Console | None,
    trace: dict[str, Any],
) -> list[Result]:
    """Decode the prompts side by side; the results in order. The longest prompt bounds every canvas."""
    plan = model.fit(max(prompts, key=len), plan)
    recorder = None
    if trace["path"] is not None:
        recorder = Recorder(model, plan, plan_name=trace["name"], seed=seed, detail=trace["detail"])
    observe = recorder.observe if recorder else None
    steps: Iterable[Step] = decode(model.denoiser(), prompts, model.roles, plan, seed=seed, observe=observe)
    if live is not None:
        steps = watch(steps, model, live)
    begun, results = time.perf_counter(), {}
    for step in steps:
        if recorder:
            recorder(step, seconds=time.perf_counter() - begun)
        for outcome in step.finished.values():
            timed = replace(outcome, seconds=time.perf_counter() - begun)
            results[outcome.key] = model.result(timed, plan)
    if recorder:
        recorder.write(trace["path"])
    return [results[key] for key in sorted(results)]
