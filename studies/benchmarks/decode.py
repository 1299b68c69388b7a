"""Decoding speed of the engine, the engine of an earlier commit and the plain research loop, in one run on one device.

    python -m studies.benchmarks.decode table --shape llada-8b --device cuda --reference .carry/ref --out OUT
    python -m studies.benchmarks.decode table                                    # rehearsal on a CPU
    python -m studies.benchmarks.decode exactness --device cuda                  # E2, on the built-in model

`table` starts a process for this code, one for float8 weights and, with `--reference`, one for the code under that
folder (a checkout of another commit, measured by `decode_reference.py`); each writes a JSON file into OUT, and a table
of all comes last. A part that fails is reported and the others go on.

Weights are random. A script steers the tokens after the real pass was paid for, so that answers have the paper's
lengths: GSM8K 134, MATH500 418, HumanEval 73, MBPP 64 passes, prompts of 60 to 1000 tokens. The research loop runs
eagerly, ours with compiled layers and CUDA graphs; both read the same parameters.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
import traceback
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from studies.benchmarks.research import Research, timed
from studies.benchmarks.workload import Script, Scripted, settle, workload
from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.loop import Denoiser, Step, decode
from voidpad.decode.plan import Plan
from voidpad.decode.presets import plan
from voidpad.decode.rows import Rows
from voidpad.engine.batching import Engine
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import CachePolicy
from voidpad.engine.captured import CapturedPass
from voidpad.engine.events import Wrote
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import PackedDenoiser, compile_body
from voidpad.engine.speed import SPEEDS
from voidpad.experiments.bench import now
from voidpad.models import load, merge
from voidpad.roles import Roles

SHAPES = {
    "llada-8b": {"vocab_size": 126464, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
                 "num_attention_heads": 32, "num_key_value_heads": 32, "rope_theta": 5e5},
    "dream-7b": {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                 "num_attention_heads": 28, "num_key_value_heads": 4, "rope_theta": 1e6},
    "small": {"vocab_size": 2048, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
              "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e4},
}  # fmt: skip
ROLES = Roles(mask=1, eos=2, void=3)
# Slots of which a scripted answer is sure at a time. Cut at the edges of blocks it is 2.9 tokens a pass: what the
# built-in model has with threshold 0.9, with and without `ahead:3` (2,000 problems).
PACE = 3.1
BLOCK = 32
AIMS = {  # of core.md: at most so many ms, at least so many times the research loop
    "block pass, ms": (5.6, None),
    "whole row, ms": (19.0, None),
    "answer, x research": (11.0, 12.5),
    "mixed workload, x research": (21.0, 25.0),
}


def network(shape: str, device: str, layers: int | None = None) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    kind, config = (Qwen2ForCausalLM, Qwen2Config) if shape == "dream-7b" else (LlamaForCausalLM, LlamaConfig)
    size = SHAPES[shape] | ({"num_hidden_layers": layers} if layers else {})
    given = config(**size, max_position_embeddings=4096, tie_word_embeddings=False)
    given.is_causal = False
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        torch.set_default_dtype(dtype)
        net = kind(given).eval()
        torch.set_default_dtype(torch.float32)
    return net


@dataclass(frozen=True)
class Steered:
    """The script of a workload on the device: replaces the logits of windows inside a captured pass."""

    script: Script
    lengths: Tensor  # (keys,) on the device

    @classmethod
    def by(cls, script: Script, device: str) -> Steered:
        return cls(script, torch.tensor(list(script.lengths), device=device))

    def tokens(self, canvas: Rows, slot: Tensor) -> Tensor:
        """What the script has at these slots (B, W)."""
        script, end = self.script, self.lengths[canvas.key][:, None]
        return torch.where(slot < end, script.word, torch.where(slot == end, script.roles.eos, script.void))

    def __call__(self, canvas: Rows, positions: Tensor, logits: Tensor) -> Tensor:
        script = self.script
        slot = positions - canvas.prompt[:, None]
        tokens = self.tokens(canvas, slot)
        masked = (canvas.ids.gather(1, positions) == script.roles.mask) & (positions < canvas.stop[:, None])
        lead = slot.masked_fill(~masked, 1 << 30).amin(1, keepdim=True)
        sure = (slot / script.pace).floor() == (lead / script.pace).floor()
        unsure = math.log(4 * logits.shape[1])  # a probability of 0.8 beside a vocabulary of zeros
        score = torch.where(sure, 30.0, unsure).to(logits.dtype)
        return torch.zeros_like(logits).scatter(1, tokens.view(-1, 1), score.view(-1, 1))


@dataclass
class Bench:
    """One network and the numbers found."""

    net: Any
    device: str
    shift: int
    seconds: float  # for the throughput measurement
    out: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)
    research: dict[int, float] = field(default_factory=dict)  # row length -> seconds a pass

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def scale(self) -> float:
        """Of prompts, canvases and answers."""
        return 1.0 if self.cuda else 0.3

    def size(self, tokens: int) -> int:
        return max(BLOCK, int(tokens * self.scale) // BLOCK * BLOCK)

    def denoiser(self, cache: str | None = None) -> Any:
        plain = HFDenoiser(self.net.model, self.net.lm_head, shift=self.shift)
        fields: dict[str, Any] = {"bucket": 32, "graphs": Graphs(2048)} if self.cuda else {}
        if cache is None:
            return PackedDenoiser(plain, **fields)
        return CachedDenoiser(plain, BLOCK, CachePolicy.parse(cache), **fields)

    def engine(self, script: Script, denoise: Any, captured: CapturedPass, **limits: Any) -> Engine:
        """An engine whose every pass is paid for and steered by the script, captured or not."""
        captured.steer = Steered.by(script, self.device)
        forget = getattr(denoise, "forget", lambda handle: None)
        return Engine(Scripted(denoise, script), ROLES, ended=forget, captured=captured, **limits)

    def plan(self, **fields: Any) -> Plan:
        return plan("void", **{"canvas": self.size(512), "block": BLOCK, **fields})

    def note(self, name: str, value: float, **more: Any) -> None:
        self.found[name] = value
        self.found |= {f"{name}: {key}": one for key, one in more.items()}
        shown = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items())
        print(f"{time.strftime('%H:%M:%S')} {name} {value:.4g}  {shown}", flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps({"torch": torch.__version__, **self.found}, indent=1) + "\n")

    def cost(self, length: int) -> float:
        """Seconds of a research pass over a row of this length: between the two nearest that were timed."""
        known = sorted(self.research)
        right = min(max(1, bisect(known, length)), len(known) - 1)
        low, high = known[right - 1], known[right]
        share = (length - low) / (high - low)
        return (1 - share) * self.research[low] + share * self.research[high]


# --------------------------------------------------------------------------------------------------- parts
def research(bench: Bench) -> None:
    """Seconds of a pass of the research loop over one row, by its length; before anything of ours is compiled."""
    for length in (320, 768, 1536):
        tokens, canvas = bench.size(length), bench.size(min(512, length - 64))
        script = Script(ROLES, [canvas])
        loop = Research(
            bench.net, ROLES, bench.shift, ban=(3,), script=lambda slot, s=script: s.token(0, slot)
        )
        row = [7] * max(4, tokens - canvas)
        loop(row, canvas=canvas, block=BLOCK, passes=3)
        eight = partial(loop, row, canvas=canvas, block=BLOCK, passes=8)
        runs = [timed(eight, bench.device) for _ in range(3)]
        times = [took / used for took, (_, used) in runs]
        bench.research[len(row) + canvas] = statistics.median(times)
    for length, seconds in bench.research.items():
        bench.note(f"research pass of {length} tokens, ms", 1e3 * seconds)


def one_row(bench: Bench, cache: str | None) -> float:
    """Milliseconds of a pass over one row inside a block, rules and host included: the median of 20."""
    denoise = bench.denoiser(cache)
    engine = bench.engine(Script(ROLES, [4000]), denoise, CapturedPass(denoise))
    engine.submit([7] * bench.size(256), bench.plan())
    for _ in range(2 * BLOCK + 6):  # captures; then a third block has been entered
        engine.step()
    times = []
    for _ in range(20):
        begun = now(bench.device)
        engine.step()
        times.append(now(bench.device) - begun)
    return 1e3 * statistics.median(times)


def block_pass(bench: Bench) -> None:
    bench.note("block pass, ms", one_row(bench, "dual"))


def breakdown(bench: Bench) -> None:
    """Where the time of a block pass goes: the graph alone, and the graph of the network without the rules."""
    if not bench.cuda:
        return
    for name, with_rules in (("block pass: graph, ms", True), ("block pass: network's graph, ms", False)):
        denoise = bench.denoiser("dual")
        engine = bench.engine(Script(ROLES, [4000]), denoise, CapturedPass(denoise))
        if not with_rules:
            engine.captured = None
        engine.submit([7] * bench.size(256), bench.plan())
        for _ in range(8):
            engine.step()
        graph = next(reversed(denoise.graphs.captured.values())).graph
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(20):
            graph.replay()
        ended.record()
        torch.cuda.synchronize()
        bench.note(name, begun.elapsed_time(ended) / 20)


def whole_row(bench: Bench) -> None:
    bench.note("whole row, ms", one_row(bench, None))


def answer(bench: Bench) -> None:
    """One answer of 160 tokens on a canvas of 512 under `fastest`, end to end, beside the research loop's passes."""
    prompt, length = bench.size(256), bench.size(160)
    speed = SPEEDS["fastest"]
    denoise = bench.denoiser(speed.cache)
    captured, chosen = CapturedPass(denoise), bench.plan(**speed.fields)
    script = Script(ROLES, [length], pace=PACE)

    def once() -> tuple[float, int]:
        engine = bench.engine(script, denoise, captured)
        took, [row] = timed(lambda: list(engine.run([[7] * prompt], chosen)), bench.device)
        return took, row.passes_decode

    for _ in range(3):  # a kind of pass is captured when it comes for the third time
        once()
    runs = [once() for _ in range(5)]
    took = statistics.median(seconds for seconds, _ in runs)
    slow = (length + 1) * bench.cost(prompt + bench.size(512))
    bench.note("answer, s", took, passes=runs[0][1], ms_per_pass=1e3 * took / runs[0][1], research_s=slow)
    bench.note("answer, x research", slow / took)


def mixed(bench: Bench) -> None:
    """A mixed workload in the middle of its course, 64 rows at most, under `fastest`."""
    count, rows = (512, 64) if bench.cuda else (100, 4)
    speed = SPEEDS["fastest"]
    prompts, lengths = workload(count, scale=bench.scale)
    script, denoise = Script(ROLES, lengths, pace=PACE), bench.denoiser(speed.cache)
    captured = CapturedPass(denoise)
    engine = bench.engine(script, denoise, captured, rows=rows, tokens=1 << 20)
    for key, prompt in enumerate(prompts):
        engine.submit(prompt, bench.plan(**speed.fields), key=key)
    engine.captured = None
    settle(engine, script, int(120 * bench.scale))
    engine.captured = captured
    work: Counter[int] = Counter()
    masks: dict[int, int] = {}

    def drive(seconds: float) -> tuple[float, int, int]:
        begun, passes, row_passes = now(bench.device), 0, 0
        while engine.busy and time.perf_counter() - begun < seconds:
            for event in engine.step():
                if isinstance(event, Wrote):
                    left = event.after.masked.sum(1).tolist()
                    for handle, length, now_left in zip(
                        event.handles, event.after.stop.tolist(), left, strict=True
                    ):
                        work[length] += max(1, masks.get(handle, now_left + 1) - now_left)
                        masks[handle] = now_left
            passes += 1
            row_passes += engine.rows_read
        return now(bench.device) - begun, passes, row_passes

    drive(0.5 * bench.seconds)  # the store grows to its size, the commonest passes are captured
    work.clear()
    took, passes, row_passes = drive(bench.seconds)
    slow = sum(number * bench.cost(length) for length, number in work.items())
    bench.note("mixed workload, slots a second", sum(work.values()) / took, ms_per_pass=1e3 * took / passes,
               rows=row_passes / passes)  # fmt: skip
    bench.note("mixed workload, x research", slow / took)


def same_answers(bench: Bench) -> None:
    """Captured passes against the ordinary path on real logits, and the ordinary path against itself in a batch.

    Where two runs part, it must be at a near-tie: two slots whose scores, or two tokens whose logits, are at most 0.125
    apart in bfloat16 (scores as logarithms, as logits are).
    """
    prompts = [[7 + (3 * row + n) % 40 for n in range(bench.size(64))] for row in range(4)]
    chosen = bench.plan(canvas=bench.size(64))

    def commits(*, captured: bool, together: bool) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {row: [] for row in range(len(prompts))}
        denoise = bench.denoiser("dual")
        whole = CapturedPass(denoise) if captured else None
        for rows in [range(len(prompts))] if together else [[row] for row in range(len(prompts))]:
            engine = Engine(denoise, ROLES, ended=denoise.forget, captured=whole)
            keys = {engine.submit(prompts[row], chosen, key=row): row for row in rows}
            for event in engine.events():
                if isinstance(event, Wrote):
                    step = event.step
                    gaps = step.logits.float().topk(2, 1).values.diff(dim=1).abs()[:, 0].cpu()
                    grid = torch.zeros(step.where.shape).masked_scatter(step.where, gaps)
                    for at, handle in enumerate(event.handles):
                        start = int(step.before.prompt[at])
                        made = {start + slot: token for slot, token, _ in step.written(at)}
                        found[keys[handle]].append((made, grid[at], scores(step)[at].log()))
        return found

    alone = commits(captured=False, together=False)
    for name, other in (
        ("captured", commits(captured=True, together=False)),
        ("ordinary, four rows in a batch", commits(captured=False, together=True)),
    ):
        parted, widest = 0, 0.0
        for row, passes in alone.items():
            for number, ((one, gaps, scores), (two, *_)) in enumerate(zip(passes, other[row], strict=False)):
                if one == two:
                    continue
                parted += 1
                ours, theirs = one.keys() - two.keys(), two.keys() - one.keys()
                apart = [float(gaps[slot]) for slot in one if slot in two and one[slot] != two[slot]]
                apart += [abs(float(scores[a] - scores[b])) for a in ours for b in theirs]
                widest = max([widest, *apart])
                print(
                    f"  {name}: row {row} parts at pass {number}: {one} | {two}, apart by {apart}", flush=True
                )
                break
        bench.note(f"{name}: rows of {len(alone)} that part from one row alone", parted, widest_gap=widest)


PARTS: dict[str, Callable[[Bench], None]] = {
    "research": research,
    "block": block_pass,
    "breakdown": breakdown,
    "whole": whole_row,
    "answer": answer,
    "mixed": mixed,
    "same": same_answers,
}


def measure(given: argparse.Namespace) -> None:
    """Every part in this process; a part that fails is reported and the others go on."""
    net = network(given.shape, given.device, given.layers)
    bench = Bench(net, given.device, int(given.shape == "dream-7b"), given.seconds, given.out)
    research(bench)
    torch._dynamo.config.recompile_limit = 64
    if given.quantize:
        from voidpad.models.fp8 import quantize_layers

        quantize_layers(net)
    if bench.cuda:
        compile_body(net.model)
    for name, part in PARTS.items():
        if name == "research" or (given.quantize and name in ("same", "breakdown")):
            continue
        try:
            part(bench)
        except Exception:
            traceback.print_exc()
        if bench.cuda:
            torch.cuda.empty_cache()


def table(given: argparse.Namespace) -> None:
    """All measurements, each in a process of its own, and what they found side by side."""
    out = given.out or Path("runs/decode")
    out.mkdir(parents=True, exist_ok=True)
    same = ["--shape", given.shape, "--device", given.device, "--seconds", str(given.seconds)]
    same += ["--layers", str(given.layers)] if given.layers else []
    here = [sys.executable, "-m", "studies.benchmarks.decode", "measure", *same]
    runs: dict[str, tuple[list[str], dict[str, str]]] = {"new": (here, {})}
    if given.device == "cuda":
        runs["new, fp8"] = ([*here, "--quantize", "fp8"], {})
    if given.reference:
        path = os.pathsep.join([str(given.reference), os.environ.get("PYTHONPATH", "")])
        script = str(Path(__file__).with_name("decode_reference.py"))
        runs["reference"] = ([sys.executable, script, *same], {"PYTHONPATH": path})
    found: dict[str, dict[str, Any]] = {}
    all_begun = time.perf_counter()
    for name, (command, environment) in runs.items():
        file = out / f"{given.shape}-{name.replace(', ', '-')}.json"
        file.unlink(missing_ok=True)
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        begun = time.perf_counter()
        limit = max(1.0, min(given.limit, given.budget - (begun - all_begun)))
        try:
            subprocess.run(
                [*command, "--out", str(file)], env={**os.environ, **environment}, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {limit:.0f} s")
        found[name] = json.loads(file.read_text()) if file.exists() else {}
        print(f"{time.strftime('%H:%M:%S')} {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    if "reference" in found:  # it has no research loop of its own: the one of this run counts
        older, research_s = found["reference"], found["new"].get("answer, s: research_s")
        if research_s and older.get("answer, s"):
            older["answer, x research"] = research_s / older["answer, s"]
        slots, ours = (
            older.get("mixed workload, slots a second"),
            found["new"].get("mixed workload, slots a second"),
        )
        if slots and ours:
            older["mixed workload, x research"] = found["new"]["mixed workload, x research"] * slots / ours
    print(
        f"\n{given.shape} on {given.device}, torch {torch.__version__}\n| | aim | " + " | ".join(found) + " |"
    )
    print("|---|---|" + "---|" * len(found))
    for row in dict.fromkeys(key for one in found.values() for key in one if key != "torch"):
        aim, aim_fp8 = AIMS.get(row, (None, None))
        wanted = "" if aim is None else f"{aim}" + (f" (fp8 {aim_fp8})" if aim_fp8 else "")
        cells = [f"{one[row]:.4g}" if isinstance(one.get(row), float | int) else "" for one in found.values()]
        print(f"| {row} | {wanted} | " + " | ".join(cells) + " |")


# ------------------------------------------------------------------------------------------------- exactness
def exactness(device: str, prompts: int) -> dict[str, Any]:
    """E2: tokens of packed bfloat16 rows against one plain row at a time, beside the plain loop's own noise."""
    from voidpad.commands.prompts import builtin_prompts

    model = merge(load("tiny-void", device=device, dtype="bfloat16" if device == "cuda" else "float32"))
    ids = [model.encode(text) for text in builtin_prompts(prompts)]
    chosen = model.plan("void", canvas=256, block=32)
    plain = model.denoiser()
    alone = {key: commits(plain, [row], model.roles, chosen)[0] for key, row in enumerate(ids)}
    ways = {"plain, all rows in one padded batch (noise floor)": plain, "packed": model.default_denoiser()}
    found = {}
    for name, denoise in ways.items():
        found[name] = agreement(alone, commits(denoise, ids, model.roles, chosen))
    if device == "cuda":
        found["packed, compiled"] = agreement(
            alone, commits(model.compiled().default_denoiser(), ids, model.roles, chosen)
        )
    return found


Commits = list[tuple[int, int, torch.Tensor]]  # slot, token, and the scores of all slots (L,), of every pass


def commits(denoise: Denoiser, prompts: list[list[int]], roles: Roles, chosen: Plan) -> dict[int, Commits]:
    found: dict[int, Commits] = {key: [] for key in range(len(prompts))}
    for step in decode(denoise, prompts, roles, chosen):
        start, every = step.before.prompt.tolist(), scores(step)
        for row, key in enumerate(step.before.key.tolist()):
            found[key] += [(start[row] + slot, token, every[row]) for slot, token, _ in step.written(row)]
    return found


def scores(step: Step) -> torch.Tensor:
    """The scores (B, L) of a pass; minus infinity outside the frontier."""
    empty = torch.full(step.before.ids.shape, -torch.inf, dtype=torch.float64)
    return step.before.spread(step.proposed.score, empty)


def agreement(alone: dict[int, Commits], other: dict[int, Commits]) -> dict[str, Any]:
    """How many rows and passes agree; where they part, how much less sure the row alone was of the other's slot."""
    margins, same, passes = [], 0, 0
    for key, ours in alone.items():
        pairs = list(zip(ours, other[key], strict=False))
        apart = next((n for n, (a, b) in enumerate(pairs) if a[:2] != b[:2]), None)
        passes += len(ours)
        same += len(pairs) if apart is None else apart
        if apart is not None:
            (slot, _, scores), (elsewhere, *_) = pairs[apart]
            margins.append(1 - float(scores[elsewhere] / scores[slot]))
    answers = sum({s: t for s, t, _ in alone[k]} == {s: t for s, t, _ in other[k]} for k in alone)
    return {
        "rows": len(alone),
        "same_order": len(alone) - len(margins),
        "same_answer": answers,
        "passes_before_parting": same / passes,
        "median_margin": statistics.median(margins or [0.0]),
        "largest_margin": max(margins, default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="table", choices=("table", "measure", "exactness"))
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--layers", type=int, help="fewer layers: a rehearsal on the device")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=6.0, help="for the throughput measurement")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds for each process of `table`")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds for all of them")
    parser.add_argument("--reference", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--quantize", choices=["fp8"])
    parser.add_argument("--prompts", type=int, default=48, help="for exactness")
    parser.add_argument("--out", type=Path, help="a folder for `table`, else a file")
    given = parser.parse_args()
    if given.what == "exactness":
        found = exactness(given.device, given.prompts)
        for name, row in found.items():
            print(name, row)
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    else:
        (table if given.what == "table" else measure)(given)


if __name__ == "__main__":
    main()
