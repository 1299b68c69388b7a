"""The measurements of `decode.py` for another checkout of voidpad, commit 4cf60c3, with that checkout's own code.

`decode.py table --reference FOLDER` runs this file with FOLDER first on the path. It reads the interface of that commit
and of no other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

old: Any = import_module("studies.benchmarks.decode")
work: Any = import_module("studies.benchmarks.workload")
Engine: Any = import_module("voidpad.engine.batching").Engine
timed: Any = import_module("voidpad.experiments.bench").timed
now: Any = import_module("voidpad.experiments.bench").now
SPEED: Any = import_module("voidpad.engine.speed").SPEEDS["fastest"]


def one_row(bench: Any, denoise: Any) -> float:
    """Milliseconds of a pass over one row inside a block: the median of 20."""
    engine = Engine(work.Scripted(denoise, work.Script(old.ROLES, [4000])), old.ROLES)
    engine.submit([7] * bench.size(256), bench.plan())
    for _ in range(2 * old.BLOCK + 6):
        engine.step()
    times = []
    for _ in range(20):
        begun = now(bench.device)
        engine.step()
        times.append(now(bench.device) - begun)
    return 1e3 * statistics.median(times)


def answer(bench: Any) -> dict[str, float]:
    prompt, length = bench.size(256), bench.size(160)
    denoise, chosen = bench.cached(SPEED.cache), bench.plan(**SPEED.fields)

    def once() -> tuple[float, int]:
        took, passes = old.answer(bench, denoise, chosen, prompt, length, old.PACE)
        return took, passes

    for _ in range(2):
        once()
    runs = [once() for _ in range(5)]
    return {"answer, s": statistics.median(took for took, _ in runs), "answer, s: passes": runs[0][1]}


def mixed(bench: Any) -> dict[str, float]:
    count, rows = (512, 64) if bench.cuda else (100, 4)
    prompts, lengths = work.workload(count, scale=bench.scale)
    script, denoise = work.Script(old.ROLES, lengths, pace=old.PACE), bench.cached(SPEED.cache)
    meter = work.PassMeter(work.Scripted(denoise, script))
    engine = Engine(meter, old.ROLES, rows=rows, tokens=1 << 20, ended=denoise.forget)
    for key, prompt in enumerate(prompts):
        engine.submit(prompt, bench.plan(**SPEED.fields), key=key)
    work.settle(engine, script, int(120 * bench.scale))
    work.drive(engine, device=bench.device, seconds=0.5 * bench.seconds)
    meter.work.clear()
    run = work.drive(engine, device=bench.device, seconds=bench.seconds)
    return {
        "mixed workload, slots a second": sum(meter.work.values()) / run.seconds,
        "mixed workload, slots a second: ms_per_pass": 1e3 * run.seconds / run.passes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="small")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    net = old.network(given.shape, given.device, given.layers)
    bench = old.Bench(net, given.device, int(given.shape == "dream-7b"), given.seconds)
    parts = {
        "block": lambda: {"block pass, ms": one_row(bench, bench.cached("dual"))},
        "whole": lambda: {"whole row, ms": one_row(bench, bench.exact())},
        "answer": lambda: answer(bench),
        "mixed": lambda: mixed(bench),
    }
    found: dict[str, Any] = {"torch": torch.__version__}
    for part in parts.values():
        try:
            found |= part()
        except Exception:
            traceback.print_exc()
        print(time.strftime("%H:%M:%S"), found, flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
