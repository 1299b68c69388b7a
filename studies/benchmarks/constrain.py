"""The cost of a constraint in a pass: what it adds to the rules of one open block, on one device, without a network.

    python -m studies.benchmarks.constrain --device cuda --vocab 126464 --out OUT
    python -m studies.benchmarks.constrain                       # rehearsal on a CPU

The vocabulary is made up: random texts of one to twelve characters, in the number of the real one. Times are medians of
single calls, each from logits in bfloat16 (float32 on a CPU) to tokens and scores on the device.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voidpad.constrain import TokenAutomaton, Vocabulary, json_schema
from voidpad.constrain.constraint import lift
from voidpad.constrain.messages import FRONTIER, Tables, Window, best_proposal, final_weights, tables_of

SCHEMAS = Path(__file__).parents[2] / "tests" / "everyday_schemas.json"
CHARACTERS = [*"abcdefghijklmnopqrstuvwxyz"] * 6 + [
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;-_{}[]\"'\\/()\n"
]


def vocabulary(size: int) -> Vocabulary:
    """All bytes and random words, without the last eight ids, which stand for special tokens."""
    draw = random.Random(0)
    words = [bytes([byte]) for byte in range(256)]
    while len(words) < size - 8:
        words.append("".join(draw.choices(CHARACTERS, k=draw.randint(1, 12))).encode())
    return Vocabulary.of([*words, *[None] * 8])


def window_of(
    automaton: TokenAutomaton, tables: Tables, rows: int, slots: int, device: torch.device
) -> Window:
    """Open blocks in which nothing is written yet."""
    kind = torch.full((rows, slots), FRONTIER, device=device)
    final = final_weights(automaton, tables.states, left=256).to(device)
    start = torch.zeros(rows, dtype=torch.long, device=device)
    return Window(
        kind, torch.zeros_like(kind), torch.zeros_like(kind, dtype=torch.bool), start, final.expand(rows, -1)
    )


def plain(logits: Tensor) -> tuple[Tensor, Tensor]:
    """What a proposal costs without a constraint: the best token and its probability, in float64."""
    p = logits.double().softmax(-1)
    best = p.max(-1)
    return best.indices, best.values


def timed(call: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    """The median time of a call in milliseconds."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


def captured(call: Callable[[], Any]) -> Callable[[], None]:
    """The call as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument(
        "--schemas", nargs="+", default=["weather", "pagination", "shape_union", "recipe", "sentiment"]
    )
    parser.add_argument("--slots", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--compile", action="store_true", help="time torch.compile too, which takes minutes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, words = torch.device(options.device), vocabulary(options.vocab)
    everyday, found = json.loads(SCHEMAS.read_text()), []
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    eos, padding = options.vocab - 1, options.vocab - 2
    ends, rest = (torch.tensor([token], device=device) for token in (eos, padding))
    for name in options.schemas:
        automaton = lift(json_schema(everyday[name]).automaton(), words)
        for rows in options.rows:
            tables = tables_of([automaton] * rows, device)
            for slots in options.slots:
                logits = torch.randn(rows, slots, options.vocab, device=device, dtype=dtype)
                window = window_of(automaton, tables, rows, slots, device)

                def constrained(logits=logits, window=window, tables=tables):  # type: ignore[no-untyped-def]
                    return best_proposal(tables, window, logits, ends=ends, padding=rest, eos=eos)

                line: dict[str, Any] = {
                    "schema": name,
                    "states": automaton.states,
                    "edges": len(automaton.source),
                }
                line |= {"classes": automaton.classes, "rows": rows, "slots": slots}
                line["plain_ms"] = timed(lambda logits=logits: plain(logits), device)
                line["eager_ms"] = timed(constrained, device)
                if device.type == "cuda":
                    line["plain_graph_ms"] = timed(captured(lambda logits=logits: plain(logits)), device)
                    line["graph_ms"] = timed(captured(constrained), device)
                if options.compile:
                    compiled = torch.compile(constrained, dynamic=False)
                    compiled()
                    line["compiled_graph_ms"] = timed(
                        captured(compiled) if device.type == "cuda" else compiled, device
                    )
                found.append(line)
                print(json.dumps(line), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "constrain.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
