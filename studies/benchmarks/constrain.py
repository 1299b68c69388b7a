"""The cost of a constraint as a share of a pass: the same problems with and without their schemas, one row at a time.

    python -m studies.benchmarks.constrain                                        # built-in model, CPU
    python -m studies.benchmarks.constrain --shape llada-8b --device cuda --tokenizer FOLDER

A pass is the network, the rules and the loop around them. On a CPU, times are those of the process, on one thread, so
that other work on the machine does not count. Constraints are compiled before the clock starts.

With `--shape` the weights are random, and the tokenizer is that of Dream-7B, whose files are in FOLDER. A script steers
the tokens after the real pass was paid for: the model wants one JSON text, and is sure of three slots of it at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import voidpad
from studies.benchmarks.decode import PACE, SHAPES, Bench, Steered, network
from studies.benchmarks.workload import Script, Scripted
from voidpad.builtin.tasks import heldout
from voidpad.constrain.row import Compiler, RowConstraint
from voidpad.decode.presets import plan
from voidpad.decode.rows import Rows, first
from voidpad.engine.batching import Engine
from voidpad.engine.captured import CapturedPass
from voidpad.engine.packed import compile_body
from voidpad.experiments.bench import now
from voidpad.roles import Roles

DREAM = Roles(mask=151666, eos=151643, void=151645)
VOCABULARY = 152064
TEXTS = {  # answers to two of tests/everyday_schemas.json, as we write them
    "weather": '{"location": "Reykjavik, near the old harbour", "temperature_c": -3.5, '
    '"conditions": "snow", "humidity": 71}',
    "lab_result": '{"analyte": "ferritin", "value": 118.2, "unit": "ng/mL", '
    '"reference_range": {"low": 30.0, "high": 300.0}, "flag": "normal"}',
}


# ------------------------------------------------------------------------------------------- at a large model's shape
@dataclass(frozen=True)
class TextScript(Script):
    """Every row wants this text, then EOS, then VOID."""

    text: tuple[int, ...] = ()

    @property
    def wanted(self) -> Tensor:
        return torch.tensor([*self.text, self.roles.eos, self.void])

    def __call__(self, canvas: Rows, where: Tensor) -> tuple[Tensor, Tensor]:
        row, column = where.nonzero(as_tuple=True)
        slot = column - canvas.prompt[row]
        lead = first(where, otherwise=canvas.prompt) - canvas.prompt
        tokens = self.wanted[slot.clamp(max=len(self.text) + 1)]
        return tokens, (slot / self.pace).floor() == (lead / self.pace).floor()[row]


@dataclass(frozen=True)
class SteeredText(Steered):
    """The same inside a captured pass; `lengths` are the wanted tokens."""

    def tokens(self, canvas: Rows, slot: Tensor) -> Tensor:
        return self.lengths[slot.clamp(0, len(self.lengths) - 1)]


@dataclass
class Timed:
    """Answers of one engine: milliseconds of each pass, and what came of them."""

    passes: list[float] = field(default_factory=list)
    tokens: int = 0
    matched: bool = True


def answers(
    bench: Bench, script: TextScript, block: int, constraint: RowConstraint | None, rows: int
) -> Timed:
    """So many rows side by side, five times; the last time counts: graphs are captured by then."""
    denoise = bench.denoiser("dual" if block == 32 else None)
    captured = CapturedPass(denoise, SteeredText(script, script.wanted.to(bench.device)))
    chosen = plan("void", canvas=bench.size(512), block=block, threshold=0.9)
    forget, found = getattr(denoise, "forget", lambda handle: None), Timed()
    for _ in range(5):
        engine = Engine(Scripted(denoise, script), script.roles, ended=forget, captured=captured, rows=rows)
        for key in range(rows):
            engine.submit([7] * bench.size(256), chosen, key=key, constraint=constraint)
        found = Timed()
        while engine.busy:
            begun = now(bench.device)
            events = engine.step()
            found.passes.append(1e3 * (now(bench.device) - begun))
            for done in (event.outcome for event in events if hasattr(event, "outcome")):
                found.tokens += len(done.tokens)
                found.matched &= constraint is None or bool(done.constraint and done.constraint.matched)
    return found


def at_shape(options: argparse.Namespace) -> None:
    """One row and eight rows, with and without a schema, at a large model's shape."""
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer.from_pretrained(options.tokenizer)
    everyday = json.loads(Path("tests/everyday_schemas.json").read_text())
    SHAPES[options.shape]["vocab_size"] = VOCABULARY
    net = network(options.shape, options.device, options.layers)
    if options.device == "cuda":
        compile_body(net.model)
    bench = Bench(net, options.device, int(options.shape == "dream-7b"), 0.0)
    compiler = Compiler(tokenizer, DREAM, VOCABULARY)
    print(
        "schema | states | block | rows | free: ms a pass, passes, tokens/s | constrained: the same | matched | share"
    )
    for name, text in TEXTS.items():
        constraint = compiler(voidpad.json_schema(everyday[name]))
        assert constraint.constraint.matches(text)
        script = TextScript(DREAM, (), pace=PACE, text=tuple(tokenizer.encode(text)))
        for block, rows in ((32, 1), (32, 8), (bench.size(512), 1)):
            both = [answers(bench, script, block, held, rows) for held in (None, constraint)]
            shown = [
                f"{statistics.median(one.passes):.2f}, {len(one.passes)}, {one.tokens}, "
                f"{1e3 * one.tokens / sum(one.passes):.0f}"
                for one in both
            ]
            free, held = (statistics.median(one.passes) for one in both)
            share = f"{100 * (held - free) / held:.0f} %"
            states = constraint.automaton.states
            print(name, states, block, rows, *shown, both[1].matched, share, sep=" | ", flush=True)


# --------------------------------------------------------------------------------------------- the built-in model


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
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--tokenizer", type=Path, help="the files of Dream-7B's tokenizer")
    parser.add_argument("--layers", type=int, help="fewer layers: a rehearsal")
    options = parser.parse_args()
    if options.shape:
        return at_shape(options)
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
