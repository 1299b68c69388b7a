"""Decoding speed against the plain research loop, on the same weights, in one run. Prints ratios.

    python -m studies.benchmarks.decode --shape llada-8b --device cuda --out llada.json   # one H200, about six minutes
    python -m studies.benchmarks.decode --shape dream-7b --device cuda --out dream.json
    python -m studies.benchmarks.decode exactness --device cuda                            # E2, on the built-in model
    python -m studies.benchmarks.decode --quantize fp8 --shape llada-8b --device cuda --seconds 10   # fp8 beside bf16
    python -m studies.benchmarks.decode                                                    # rehearsal on a CPU

Weights are random. A script steers the tokens after the real pass was paid for, so that answers have the paper's
lengths: GSM8K 134, MATH500 418, HumanEval 73, MBPP 64 passes, prompts of 60 to 1000 tokens. The research loop runs
eagerly, ours with compiled layers and CUDA graphs; both read the same parameters.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from studies.benchmarks.workload import PassMeter, Script, Scripted, TimedRun, drive, settle, workload
from voidpad.decode.canvas import Canvas
from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.loop import Denoiser, decode
from voidpad.decode.plan import Plan, plan
from voidpad.engine.batching import Engine
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import CachePolicy
from voidpad.engine.compiled import compile_layers
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import PackedDenoiser
from voidpad.experiments.bench import Research, now, timed
from voidpad.models import fp8, load, merge
from voidpad.models.quantizer import Quantizer
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
# built-in model has with threshold 0.9, with and without `ahead:3` (`voidpad bench --frontier`, 2,000 problems).
PACE = 3.1
BLOCK = 32


def network(shape: str, device: str, layers: int | None) -> Any:
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


def same_weights(net: Any) -> Any:
    """A copy of the network that reads the same parameters."""
    return copy.deepcopy(net, {id(p): p for p in net.parameters()})


@dataclass
class Bench:
    """One model, the plain network and a compiled twin with the same parameters, and the numbers found."""

    net: Any
    device: str
    shift: int
    seconds: float  # for each throughput measurement
    found: dict[str, Any] = field(default_factory=dict)
    research: dict[int, float] = field(default_factory=dict)  # row length -> seconds a pass
    peak: float = 0.0  # FLOP/s

    def __post_init__(self) -> None:
        self.twin = same_weights(self.net)
        if self.cuda:
            compile_layers(self.plain().body, cached=True, dynamic=True)

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def scale(self) -> float:
        """Of prompts, canvases and answers."""
        return 1.0 if self.cuda else 0.3

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.net.model.layers.parameters())

    def plain(self, head: nn.Module | None = None) -> HFDenoiser:
        return HFDenoiser(self.twin.model, head or self.twin.lm_head, shift=self.shift, narrow=True)

    def exact(self) -> PackedDenoiser:
        return PackedDenoiser(self.plain(), bucket=64 if self.cuda else 1, graphs=Graphs(1024))

    def cached(self, cache: str = "dual") -> CachedDenoiser:
        bucket = 64 if self.cuda else 1
        policy = CachePolicy.parse(cache)
        return CachedDenoiser(self.plain(), BLOCK, policy, bucket=bucket, graphs=Graphs(1024))

    def size(self, tokens: int) -> int:
        return max(BLOCK, int(tokens * self.scale) // BLOCK * BLOCK)

    def plan(self, name: str = "fixed", **fields: Any) -> Plan:
        """A fixed canvas of 512, or VoidExpansion from 64 to 512."""
        if name == "fixed":
            return plan("void", **{"canvas": self.size(512), "block": BLOCK} | fields)
        grown = {
            "canvas": self.size(64),
            "limit": self.size(512),
            "window": 16,
            "tau_nonvoid": 0.3,
            "tau_gap": 0.3,
        }
        return plan("void-expansion", block=BLOCK, **grown, **fields)

    def note(self, name: str, **numbers: Any) -> None:
        self.found[name] = numbers
        shown = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in numbers.items())
        print(f"{time.strftime('%H:%M:%S')} {name}: {shown}", flush=True)

    def cost(self, length: int) -> float:
        """Seconds of a research pass over a row of this length: between the two nearest that were timed."""
        known = sorted(self.research)
        right = min(max(1, bisect(known, length)), len(known) - 1)
        low, high = known[right - 1], known[right]
        share = (length - low) / (high - low)
        return (1 - share) * self.research[low] + share * self.research[high]


@contextmanager
def memory() -> Iterator[Callable[[], float]]:
    """GiB that were needed at once inside, beyond what was held before."""
    if not torch.cuda.is_available():
        yield lambda: 0.0
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    yield lambda: (torch.cuda.max_memory_allocated() - held) / 2**30


def peak(bench: Bench) -> None:
    """Matrix throughput that this device reaches, and what it reaches at the widths a pass has."""
    n = 8192 if bench.cuda else 512
    found = {}
    for rows in (n, 32, 320, 768, 2048, 4096):
        a, b = (torch.randn(m, n, device=bench.device, dtype=bench.net.dtype) for m in (rows, n))
        for _ in range(3):
            a @ b
        begun = now(bench.device)
        for _ in range(20):
            a @ b
        found[rows] = 40 * rows * n**2 / (now(bench.device) - begun)
    bench.peak = found.pop(n)
    bench.note("peak", tflops=bench.peak / 1e12, **{f"at {m} rows": rate / 1e12 for m, rate in found.items()})
    repeats = 1400 if bench.cuda else 20  # two seconds on an H200: by then its clock has come down
    begun = now(bench.device)
    for _ in range(repeats):
        b @ b
    bench.note("sustained peak", tflops=2 * repeats * n**3 / (now(bench.device) - begun) / 1e12)


def research_pass(bench: Bench, length: int, passes: int = 12) -> float:
    """Seconds of a pass of the research loop over one row."""
    canvas = min(bench.size(512), length - 4)
    script = Script(ROLES, [canvas])
    loop = Research(bench.net, ROLES, bench.shift, ban=(3,), script=lambda slot: script.token(0, slot))
    row = [7] * (length - canvas)
    loop(row, canvas=canvas, block=BLOCK, passes=3)
    took, (_, used) = timed(lambda: loop(row, canvas=canvas, block=BLOCK, passes=passes), bench.device)
    return took / used


def engine_pass(bench: Bench, denoise: Denoiser, prompt: int, chosen: Plan, passes: int = 12) -> float:
    """Seconds of a pass of the engine over one row."""
    engine = Engine(Scripted(denoise, Script(ROLES, [4000])), ROLES)
    engine.submit([7] * prompt, chosen)
    for _ in range(3):
        engine.step()
    took, _ = timed(lambda: [engine.step() for _ in range(passes)], bench.device)
    return took / passes


def latency(bench: Bench) -> None:
    """Batch 1, exact; research and ours in turns, the median of five."""
    for canvas in (512, 200, 64):
        prompt, canvas = bench.size(256), bench.size(canvas)
        ours, chosen, pairs = bench.exact(), bench.plan(canvas=canvas), []
        engine_pass(bench, ours, prompt, chosen)  # compiles and captures
        for _ in range(5):
            pairs.append((research_pass(bench, prompt + canvas), engine_pass(bench, ours, prompt, chosen)))
        slow, fast = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratios = [a / b for a, b in pairs]
        bench.research[prompt + canvas] = slow
        flops = 2 * bench.parameters * (prompt + canvas)
        bench.note(
            f"latency exact {prompt}+{canvas}",
            research_ms=1e3 * slow,
            ours_ms=1e3 * fast,
            ratio=slow / fast,
            lowest=min(ratios),
            highest=max(ratios),
            share_of_peak=flops / fast / bench.peak,
        )
    for length in {bench.size(1024) + 4, bench.size(1728) + 4}:
        bench.research[length] = statistics.median(research_pass(bench, length) for _ in range(3))
    bench.note("research ms by row length", **{str(n): 1e3 * t for n, t in sorted(bench.research.items())})


def answer(
    bench: Bench, denoise: Any, chosen: Plan, prompt: int, length: int, pace: float
) -> tuple[float, int]:
    """Seconds and passes of one whole answer."""
    script = Script(ROLES, [length], pace=pace)
    engine = Engine(Scripted(denoise, script), ROLES, ended=getattr(denoise, "forget", lambda key: None))
    took, [row] = timed(lambda: list(engine.run([[7] * prompt], chosen)), bench.device)
    return took, row.passes_decode + row.passes_probe - row.passes_shared


def approximate_latency(bench: Bench) -> None:
    """Batch 1: one answer of 160 tokens on a canvas of 512, end to end, beside the research loop's passes."""
    prompt, length = bench.size(256), bench.size(160)
    slow = (length + 1) * bench.cost(prompt + bench.size(512))
    ways = {
        "exact": (bench.exact(), 1.0, bench.plan()),
        "exact, threshold": (bench.exact(), PACE, bench.plan(threshold=0.9)),
        "dual cache": (bench.cached(), 1.0, bench.plan()),
        "dual cache, threshold": (bench.cached(), PACE, bench.plan(threshold=0.9)),
        "dual:4 cache, threshold": (bench.cached("dual:4"), PACE, bench.plan(threshold=0.9)),
        "ahead:3 cache, threshold": (bench.cached("ahead:3"), PACE, bench.plan(threshold=0.9)),
        "ahead:3 cache, threshold, expansion": (
            bench.cached("ahead:3"),
            PACE,
            bench.plan("expansion", threshold=0.9),
        ),
    }
    for name, (denoise, pace, chosen) in ways.items():
        measure = partial(answer, bench, denoise, chosen, prompt, length, pace)
        measure()  # captures
        runs = [measure() for _ in range(3)]
        took, passes = statistics.median(t for t, _ in runs), runs[0][1]
        bench.note(f"answer of {length}, {name}", seconds=took, passes=passes, ms_per_pass=1e3 * took / passes,
                   tokens_per_s=length / took, ratio=slow / took)  # fmt: skip


def static_batch(bench: Bench) -> None:
    """The plain loop on a padded batch, all logits in float64: seconds and memory of one pass, against ours."""
    rows = 32 if bench.cuda else 4
    prompts, lengths = workload(rows, scale=bench.scale)
    canvas = Canvas.blank(prompts, bench.size(512), ROLES, range(rows))

    @torch.inference_mode()
    def naive() -> None:
        logits = bench.net(canvas.ids.to(bench.device), attention_mask=canvas.inside.long().to(bench.device),
                           use_cache=False).logits  # fmt: skip
        tokens = logits.argmax(-1)
        logits.double().softmax(-1).gather(2, tokens[:, :, None])

    engine = Engine(Scripted(bench.exact(), Script(ROLES, lengths)), ROLES, rows=rows, tokens=1 << 20)
    for key, prompt in enumerate(prompts):
        engine.submit(prompt, bench.plan(), key=key)
    found = [paid(engine.step, bench.device)]
    try:
        found.append(paid(naive, bench.device))
    except torch.OutOfMemoryError:
        bench.note(
            f"static batch {rows}", plain="out of memory", ours_ms=1e3 * found[0][0], ours_gib=found[0][1]
        )
        return
    (ours, small), (plain, large) = found
    waste = max(lengths) * rows / sum(lengths)  # a static batch runs until its slowest row
    bench.note(f"static batch {rows}", plain_ms=1e3 * plain, ours_ms=1e3 * ours, ratio_per_pass=plain / ours,
               ratio_with_waiting=plain / ours * waste, plain_gib=large, ours_gib=small)  # fmt: skip


def paid(call: Callable[[], Any], device: str) -> tuple[float, float]:
    """Seconds and GiB of a call, after a first one."""
    call()
    with memory() as used:
        took = statistics.median(timed(call, device)[0] for _ in range(3))
    return took, used()


def throughput(bench: Bench) -> None:
    """A mixed workload in the middle of its course, through one engine."""
    fast = {"threshold": 0.9}
    ways: dict[str, tuple[Denoiser, float, Plan, int]] = {
        "exact, fixed": (bench.exact(), 1.0, bench.plan(), 16384),
        "exact, expansion": (bench.exact(), 1.0, bench.plan("expansion"), 16384),
        "exact, fixed, threshold": (bench.exact(), PACE, bench.plan(**fast), 16384),
        "dual cache, fixed": (bench.cached(), 1.0, bench.plan(), 1 << 20),
        "dual cache, fixed, threshold": (bench.cached(), PACE, bench.plan(**fast), 1 << 20),
        "dual:4 cache, fixed, threshold": (bench.cached("dual:4"), PACE, bench.plan(**fast), 1 << 20),
        "ahead:3 cache, fixed, threshold": (bench.cached("ahead:3"), PACE, bench.plan(**fast), 1 << 20),
        "ahead:3 cache, expansion, threshold": (
            bench.cached("ahead:3"),
            PACE,
            bench.plan("expansion", **fast),
            1 << 20,
        ),
    }
    for name, (denoise, pace, chosen, tokens) in ways.items():
        with memory() as used:
            run, work = mixed(bench, denoise, chosen, pace=pace, tokens=tokens)
        slow = sum(passes * bench.cost(length) for length, passes in work.items())
        bench.note(
            f"mixed workload, {name}",
            ratio=slow / run.seconds,
            slots_per_s=sum(work.values()) / run.seconds,
            rows=run.row_passes / run.passes,
            ms_per_pass=1e3 * run.seconds / run.passes,
            finished=run.finished,
            gib=used(),
            **(
                {}
                if isinstance(denoise, CachedDenoiser)
                else {"share_of_peak": flops(bench, run) / bench.peak}
            ),
        )
        if isinstance(denoise, CachedDenoiser):
            denoise.clear()


def flops(bench: Bench, run: TimedRun) -> float:
    """A second, in the layers' products; the head and attention are not counted."""
    return 2 * bench.parameters * run.tokens / run.seconds


def mixed(
    bench: Bench, denoise: Any, chosen: Plan, *, pace: float, tokens: int
) -> tuple[TimedRun, dict[int, int]]:
    count, rows = (1024, 64) if bench.cuda else (200, 4)
    prompts, lengths = workload(count, scale=bench.scale)
    script = Script(ROLES, lengths, pace=pace)
    meter = PassMeter(Scripted(denoise, script))
    forget = getattr(denoise, "forget", lambda key: None)
    engine = Engine(meter, ROLES, rows=rows, tokens=tokens, ended=forget)
    for key, prompt in enumerate(prompts):
        engine.submit(prompt, chosen, key=key)
    settle(engine, script, int(400 * bench.scale / pace))
    drive(engine, device=bench.device, seconds=0.3 * bench.seconds)
    meter.work.clear()
    return drive(engine, device=bench.device, seconds=bench.seconds), meter.work


def probes(bench: Bench) -> None:
    """VoidExpansion's probes on the mixed workload: their share of all tokens computed. No pass is paid for."""
    prompts, lengths = workload(128, scale=bench.scale)
    for pace, name in ((1.0, "one slot a pass"), (PACE, "threshold")):
        script, total = Script(ROLES, lengths, pace=pace), {False: 0, True: 0}
        chosen = bench.plan("expansion", **({"threshold": 0.9} if pace > 1 else {}))
        free = Scripted(lambda canvas, where: torch.zeros(int(where.sum()), 64), script)
        for step in decode(free, prompts, ROLES, chosen):
            only = step.before.probing & (step.after.decoded == step.before.decoded)
            for probe in (False, True):
                total[probe] += int(step.before.canvas.stop[only == probe].sum())
        bench.note(f"probes, {name}", share=total[True] / sum(total.values()))


def growth(bench: Bench) -> None:
    """Milliseconds of an exact pass as one thing grows."""
    prompt = bench.size(256)
    ours = bench.exact()

    def one(denoise: Denoiser, **fields: Any) -> float:
        chosen = bench.plan(**fields)
        engine_pass(bench, denoise, prompt, chosen, 2)
        return 1e3 * engine_pass(bench, denoise, prompt, chosen, 8)

    bench.note("ms by canvas", **{str(n): one(ours, canvas=bench.size(n)) for n in (64, 128, 256, 512, 1024)})
    bench.note("ms by block", **{str(n): one(ours, block=bench.size(n)) for n in (32, 64, 128, 256, 512)})
    weight, found = bench.twin.lm_head.weight, {}
    for vocabulary in (32_000, 64_000, len(weight)):
        head = nn.Linear(1, 1, bias=False)
        head.weight = nn.Parameter(weight[:vocabulary], requires_grad=False)
        found[str(vocabulary)] = one(
            PackedDenoiser(bench.plain(head), ours.bucket, Graphs(1024)), block=bench.size(512)
        )
    bench.note("ms by vocabulary, block 512", **found)
    found = {}
    for rows in (1, 2, 4, 8, 16, 32, 64) if bench.cuda else (1, 2, 4):
        engine = Engine(Scripted(ours, Script(ROLES, [4000] * rows)), ROLES, rows=rows, tokens=1 << 20)
        for key in range(rows):
            engine.submit([7] * prompt, bench.plan(), key=key)
        for _ in range(2):
            engine.step()
        found[str(rows)] = 1e3 * drive(engine, device=bench.device, passes=4).seconds / 4
    bench.note("ms by rows", **found)


def exactness(device: str, prompts: int) -> dict[str, Any]:
    """E2: tokens of packed bfloat16 rows against one plain row at a time, beside the plain loop's own noise."""
    from voidpad.commands.calibrate import own_prompts

    model = merge(load("tiny-void", device=device, dtype="bfloat16" if device == "cuda" else "float32"))
    ids = [model.encode(text) for text in own_prompts(prompts)]
    chosen = model.plan("void", canvas=192, block=32)
    plain = model.denoiser()
    alone = {key: commits(plain, [row], model.roles, chosen)[0] for key, row in enumerate(ids)}
    ways = {"plain, all rows in one padded batch (noise floor)": plain, "packed": model.exact()}
    found = {}
    for name, denoise in ways.items():
        found[name] = agreement(alone, commits(denoise, ids, model.roles, chosen))
    if device == "cuda":
        found["packed, compiled"] = agreement(
            alone, commits(model.compiled().exact(), ids, model.roles, chosen)
        )
    return found


Commits = list[tuple[int, int, torch.Tensor]]  # slot, token, and the scores of all slots (L,), of every pass


def commits(denoise: Denoiser, prompts: list[list[int]], roles: Roles, chosen: Plan) -> dict[int, Commits]:
    found: dict[int, Commits] = {key: [] for key in range(len(prompts))}
    for step in decode(denoise, prompts, roles, chosen):
        for row, slot in step.chosen.nonzero().tolist():
            key = int(step.before.canvas.key[row])
            found[key].append((slot, int(step.tokens[row, slot]), step.score[row]))
    return found


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


def quantized(bench: Bench, name: str, rounds: int = 2) -> None:
    """The same weights, plain and quantized, in turns: one row, the mixed workload, and 64 rows with a cache.

    A ratio is the speed of the quantized weights over that of the plain ones: slots a second in the workload, else
    passes a second.
    """
    torch._dynamo.config.recompile_limit = 64  # torch counts the compilations of both networks together
    plain = str(bench.net.dtype).removeprefix("torch.")
    net = same_weights(bench.net)
    Quantizer(name).convert(net)
    both = {plain: bench, name: Bench(net, bench.device, bench.shift, bench.seconds)}
    prompt, length = bench.size(256), bench.size(160)

    def row(one: Bench, denoise: Any) -> float:
        return 1 / engine_pass(one, denoise, prompt, one.plan())

    def cached_row(one: Bench, denoise: Any) -> float:
        took, passes = answer(one, denoise, one.plan(), prompt, length, 1.0)
        return passes / took

    def workload_with(tokens: int, one: Bench, denoise: Any) -> float:
        run, work = mixed(one, denoise, one.plan(), pace=1.0, tokens=tokens)
        getattr(denoise, "clear", lambda: None)()
        return sum(work.values()) / run.seconds

    ways: dict[str, tuple[Callable[[Bench], Any], Callable[[Bench, Any], float]]] = {
        f"one row of {prompt}+{bench.size(512)}": (Bench.exact, row),
        f"one row of {prompt}+{bench.size(512)}, dual cache": (Bench.cached, cached_row),
        "mixed workload, exact": (Bench.exact, partial(workload_with, 16384)),
        "mixed workload, dual cache, 64 rows at most": (Bench.cached, partial(workload_with, 1 << 20)),
    }
    for way, (make, speed) in ways.items():
        denoisers = {kind: make(one) for kind, one in both.items()}
        for kind, one in both.items():
            (row if make is Bench.exact else cached_row)(one, denoisers[kind])  # compiles and captures
        pairs = [[speed(one, denoisers[kind]) for kind, one in both.items()] for _ in range(rounds)]
        speeds = dict(
            zip(both, (statistics.median(column) for column in zip(*pairs, strict=True)), strict=True)
        )
        ratios = [other / first for first, other in pairs]
        bench.note(f"{way}, {name}", **{f"{kind} a second": value for kind, value in speeds.items()},
                   ratio=speeds[name] / speeds[plain], lowest=min(ratios), highest=max(ratios))  # fmt: skip


def products(bench: Bench) -> None:
    """One product of a layer, plain and in float8, with sums in the tensor cores and with sums in float32.

    Also the relative error against the plain product. Quantizing the activations is counted.
    """
    config = bench.net.config
    sizes = config.hidden_size, config.intermediate_size
    for inputs, outputs in (sizes[:1] * 2, sizes, sizes[::-1]):
        for tokens in (768, 2048, 16384) if bench.cuda else (32, 256):
            x = torch.randn(tokens, inputs, device=bench.device, dtype=bench.net.dtype)
            linear = nn.Linear(inputs, outputs, bias=False, device=bench.device, dtype=bench.net.dtype)
            layer, found = fp8.Fp8Linear(linear), {}
            chosen = fp8.FAST_ACCUMULATION
            with torch.inference_mode():
                wanted, took = linear(x).float(), each(linear, x, bench.device)
                for name, fast in (("fp8", True), ("fp8, float32 sums", False)):
                    fp8.FAST_ACCUMULATION = fast
                    found[f"{name} ms"] = 1e3 * each(layer, x, bench.device)
                    found[f"{name} error"] = float((layer(x) - wanted).norm() / wanted.norm())
            fp8.FAST_ACCUMULATION = chosen
            bench.note(f"product {inputs}x{outputs}, {tokens} tokens", plain_ms=1e3 * took,
                       ratio=1e3 * took / found["fp8 ms"], **found)  # fmt: skip


def each(layer: nn.Module, x: torch.Tensor, device: str, repeats: int = 30) -> float:
    """Seconds of one call among many, which a GPU replays as a graph."""

    def call() -> None:
        for _ in range(repeats):
            layer(x)

    call()
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        return timed(graph.replay, device)[0] / repeats
    return timed(call, device)[0] / repeats


PARTS = {
    "peak": peak,
    "latency": latency,
    "approximate": approximate_latency,
    "static": static_batch,
    "probes": probes,
    "throughput": throughput,
    "growth": growth,
}


def chosen_parts(asked: list[str]) -> list[str]:
    """In their order, with those that others build on."""
    wanted = set(asked or PARTS) | {"peak"}
    if wanted & {"approximate", "throughput"}:
        wanted |= {"latency"}
    return [name for name in PARTS if name in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", help=f"of {', '.join(PARTS)}, exactness; all but the last unless given"
    )
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--layers", type=int, help="fewer layers: a rehearsal on the device")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=20.0, help="for each throughput measurement")
    parser.add_argument("--prompts", type=int, default=48, help="for exactness")
    parser.add_argument(
        "--quantize", choices=["fp8"], help="compare these weights with the plain ones, and nothing else"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if unknown := set(given.parts) - {*PARTS, "exactness"}:
        parser.error(f"unknown part {min(unknown)}; choose from {', '.join(PARTS)}, exactness")
    if given.quantize and given.parts:
        parser.error("--quantize is a measurement of its own; drop the parts")
    if given.parts == ["exactness"]:
        found = exactness(given.device, given.prompts)
        for name, row in found.items():
            print(name, row)
    else:
        net = network(given.shape, given.device, given.layers)
        bench = Bench(net, given.device, int(given.shape == "dream-7b"), given.seconds)
        found = bench.found
        compared = {"quantized": partial(quantized, name=given.quantize), "products": products}
        parts = compared if given.quantize else {name: PARTS[name] for name in chosen_parts(given.parts)}
        for part in parts.values():
            try:
                part(bench)
            finally:
                if given.out:
                    given.out.write_text(json.dumps({"torch": torch.__version__, **found}, indent=1) + "\n")
    if given.out:
        given.out.write_text(json.dumps({"torch": torch.__version__, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
