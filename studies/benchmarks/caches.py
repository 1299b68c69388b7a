"""What each cache costs and gives on the built-in model: right answers against exact decoding, and the time of both.

    python -m studies.benchmarks.caches --problems 128 --out runs/caches.jsonl
    python -m studies.benchmarks.caches --problems 512 --caches dual:4,prompt:4 --out runs/caches.jsonl

Problems are the first test problems of the four tasks; generated programs run in the sandbox. All ways take turns with
32 problems at a time, so that a machine whose speed drifts slows them alike, and time is CPU time, the one to read on a
busy machine. Each turn is a line of --out; a call that was interrupted goes on after the last one.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from voidpad.builtin.problems import Problem
from voidpad.builtin.tasks import CANVAS, TASKS, check, heldout
from voidpad.engine.memory import keep_freed_memory
from voidpad.models import Model, load, merge
from voidpad.sandbox import Sandbox

CACHES = "dual,dual:4,dual:8,prompt,prompt:2,prompt:4,prompt:6,prompt:8,prompt:4:16,ahead:4,near:16,near:16:4"
EXACT, AGAINST = "exact", "dual:4"
ROWS = 32  # problems in a turn


@dataclass(frozen=True)
class Turn:
    """One way of decoding on one share of the problems."""

    way: str  # exact, or a cache
    first: int  # number of the first problem
    fields: dict[str, Any]  # of the plan
    seconds: float  # of CPU time
    tokens: int  # computed
    passes: int
    right: list[bool]


def turn(
    model: Model, way: str, first: int, problems: Sequence[Problem], sandbox: Sandbox, fields: dict[str, Any]
) -> Turn:
    chosen, tokens = model.plan("void", **fields), 0

    def count(_: Any, args: Any) -> None:
        nonlocal tokens
        tokens += args[0].numel()

    prompts = [model.encode(problem.prompt) for problem in problems]
    body: Any = model.base.model
    hook = body.embed_tokens.register_forward_pre_hook(count)
    begun = time.process_time()
    engine = model.engine(rows=ROWS, cache=None if way == EXACT else way, block=chosen.block)
    rows = sorted(engine.run(prompts, chosen), key=lambda row: row.key)
    seconds = time.process_time() - begun
    hook.remove()
    texts = [model.text(row.tokens, cut=chosen.cut) for row in rows]
    right = [check(problem, text, sandbox) for problem, text in zip(problems, texts, strict=True)]
    return Turn(way, first, fields, seconds, tokens, sum(row.passes_decode for row in rows), right)


def table(turns: Sequence[Turn]) -> list[str]:
    """A row for each way: of the problems that all of them have answered."""
    ways = list(dict.fromkeys(one.way for one in turns))
    done = set.intersection(*({one.first for one in turns if one.way == way} for way in ways))
    found = {way: sorted((one for one in turns if one.way == way and one.first in done), key=lambda one: one.first)
             for way in ways}  # fmt: skip
    right = {way: [value for one in found[way] for value in one.right] for way in ways}
    seconds, tokens = ({way: sum(getattr(one, name) for one in found[way]) for way in ways}
                       for name in ("seconds", "tokens"))  # fmt: skip
    heads = ("cache", f"right of {len(right[EXACT])}", "against exact, points", "tokens computed", "passes",
             "CPU seconds", f"as fast as `{AGAINST}`")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for way in ways:
        count = len(right[way])
        lost, won = (sum(a > b for a, b in zip(right[one], right[other], strict=True))
                     for one, other in ((EXACT, way), (way, EXACT)))  # fmt: skip
        spread = 1.96 * math.sqrt(lost + won - (won - lost) ** 2 / count) / count
        cells = (
            way if way == EXACT else f"`{way}`",
            f"{sum(right[way])}",
            "" if way == EXACT else f"{100 * (won - lost) / count:+.1f} ± {100 * spread:.1f}",
            f"{tokens[way] / tokens[EXACT]:.3f}",
            f"{sum(one.passes for one in found[way]) / count:.1f}",
            f"{seconds[way]:.1f}",
            f"{seconds[AGAINST] / seconds[way]:.2f}x" if AGAINST in seconds else "",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--caches", default=CACHES, help="separated by commas")
    parser.add_argument("--problems", type=int, default=128, help=f"a multiple of {ROWS}")
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines; what is there is not measured again"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    model = merge(load("tiny-void", device="cpu"))
    each = [heldout(name, -(-given.problems // len(TASKS))) for name in TASKS]
    problems = [problem for four in zip(*each, strict=True) for problem in four][: given.problems]
    fields = {"canvas": CANVAS, "block": given.block, "threshold": given.threshold}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    turns = [one for one in (Turn(**json.loads(line)) for line in lines) if one.fields == fields]
    ways = [EXACT, *given.caches.split(",")]
    with Sandbox() as sandbox, given.out.open("a") as out:
        for first in range(0, len(problems), ROWS):
            for way in ways:
                if any((one.way, one.first) == (way, first) for one in turns):
                    continue
                share = problems[first : first + ROWS]
                turns.append(turn(model, way, first, share, sandbox, fields))
                print(json.dumps(asdict(turns[-1])), file=out, flush=True)
                print(f"{first + len(share)} of {len(problems)} problems, {way}", flush=True)
    print("\n".join(table([one for one in turns if one.way in ways and one.first < len(problems)])))


if __name__ == "__main__":
    main()
