"""The cost of a constraint as a share of a pass: the same problems with and without their schemas, one row at a time.

    python -m studies.benchmarks.constrain                                        # built-in model, CPU
    python -m studies.benchmarks.constrain --model GSAI-ML/LLaDA-8B-Instruct --device cuda

A pass is the network, the rules and the loop around them. On a CPU, times are those of the process, on one thread, so
that other work on the machine does not count. Constraints are compiled before the clock starts.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import voidpad
from voidpad.builtin.tasks import heldout


def milliseconds(model: voidpad.Model, problems: list[Any], clock: Any, **fields: Any) -> float:
    """The time of a pass, over all problems."""
    passes, begun = 0, clock()
    for problem in problems:
        constraint = voidpad.json_schema(problem.schema) if fields["held"] else None
        shared = {name: value for name, value in fields.items() if name != "held"}
        (result,) = model.generate([problem.prompt], constraint=constraint, **shared)
        passes += result.passes_decode
    return float(1e3 * (clock() - begun) / passes)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m studies.benchmarks.constrain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="tiny-void")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--canvas", type=int, default=256)
    parser.add_argument("--blocks", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--problems", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    model = voidpad.load(options.model, device=options.device)
    problems = heldout("tiny_json", options.problems)
    states = [model.compiler(voidpad.json_schema(problem.schema)).automaton.states for problem in problems]
    print(f"{options.model} on {options.device}, canvas {options.canvas}, {len(problems)} problems,", end=" ")
    print(f"{min(states)} to {max(states)} states")
    print("block | free, ms a pass | constrained, ms a pass | share of the constraint")
    for block in options.blocks:
        fields = {"canvas": options.canvas, "block": block, "threshold": 0.9}
        milliseconds(model, problems[:1], clock, held=True, **fields)
        free, constrained = (
            milliseconds(model, problems, clock, held=held, **fields) for held in (False, True)
        )
        share = 100 * (constrained - free) / constrained
        print(f"{block} | {free:.1f} | {constrained:.1f} | {share:.0f} %", flush=True)


if __name__ == "__main__":
    main()
