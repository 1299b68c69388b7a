"""Decoding speed against the plain research loop, on the same weights, in one run. Prints ratios.

    python benchmarks/decode.py --shape llada-8b --device cuda --out decode.json     # one H200, about five minutes
    python benchmarks/decode.py --shape small --device cpu                            # rehearsal

Weights are random. A script steers the tokens after the real pass was paid for, so that answers have the paper's
lengths: GSM8K 134, MATH500 418, HumanEval 73, MBPP 64 passes, prompts of 60 to 1000 tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from voidpad.bench import Research, Run, Script, drive, now, workload
from voidpad.decode.canvas import Canvas
from voidpad.decode.denoise import HFDenoiser, Scripted
from voidpad.decode.plan import Plan, plan
from voidpad.engine import Engine
from voidpad.fast.cached import Cached
from voidpad.fast.graphs import Graphs
from voidpad.fast.packed import Packed, compiled
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


def network(shape: str, device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    kind, config = (Qwen2ForCausalLM, Qwen2Config) if shape == "dream-7b" else (LlamaForCausalLM, LlamaConfig)
    given = config(**SHAPES[shape], max_position_embeddings=4096, tie_word_embeddings=False)
    given.is_causal = False
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        torch.set_default_dtype(dtype)
        net = kind(given).eval()
        torch.set_default_dtype(torch.float32)
    return net


@dataclass
class Bench:
    """One model and the numbers found on it."""

    net: Any
    device: str
    shift: int
    scale: float  # of prompts, canvases and answers: 1 on a GPU
    found: dict[str, Any]

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.net.model.layers.parameters())

    def plain(self) -> HFDenoiser:
        return HFDenoiser(self.net.model, self.net.lm_head, shift=self.shift)

    def size(self, tokens: int) -> int:
        return max(32, int(tokens * self.scale) // 32 * 32)

    def note(self, name: str, **numbers: Any) -> None:
        self.found[name] = numbers
        shown = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in numbers.items())
        print(f"{time.strftime('%H:%M:%S')} {name}: {shown}", flush=True)


def peak(bench: Bench) -> float:
    """Matrix throughput that this device reaches, in FLOP/s."""
    n = 8192 if bench.device == "cuda" else 512
    a, b = (torch.randn(n, n, device=bench.device, dtype=bench.net.dtype) for _ in range(2))
    for _ in range(3):
        a @ b
    begun = now(bench.device)
    for _ in range(10):
        a @ b
    rate = 20 * n**3 / (now(bench.device) - begun)
    bench.note("peak", tflops=rate / 1e12)
    return rate


def research_pass(bench: Bench, prompt: int, canvas: int, passes: int) -> float:
    """Seconds per pass of the research loop on one row."""
    script = Script(ROLES, [canvas])
    loop = Research(bench.net, ROLES, bench.shift, ban=(3,), script=lambda slot: script.token(0, slot))
    row = [7] * prompt
    loop(row, canvas=canvas, block=32, passes=3)
    begun = now(bench.device)
    _, used = loop(row, canvas=canvas, block=32, passes=passes)
    return (now(bench.device) - begun) / used


def engine_pass(bench: Bench, denoise: Any, prompt: int, chosen: Plan, passes: int) -> float:
    """Seconds per pass of the engine on one row."""
    engine = Engine(Scripted(denoise, Script(ROLES, [4000])), ROLES)
    engine.submit([7] * prompt, chosen)
    for _ in range(3):
        engine.step()
    begun = now(bench.device)
    for _ in range(passes):
        engine.step()
    return (now(bench.device) - begun) / passes


def exact(bench: Bench, graphs: int) -> Packed:
    return Packed(bench.plain(), bucket=64 if bench.device == "cuda" else 1, graphs=Graphs(graphs))


def latency(bench: Bench, rate: float, kind: str = "") -> list[tuple[int, float]]:
    """Batch 1, exact, and the research loop's seconds by row length."""
    lines = []
    for canvas in (512, 200, 64):
        canvas = bench.size(canvas)
        prompt = bench.size(256)
        slow = research_pass(bench, prompt, canvas, 24)
        denoise = exact(bench, 4096)
        fast = engine_pass(bench, denoise, prompt, plan("void", canvas=canvas, block=32), min(24, canvas - 4))
        flops = 2 * bench.parameters * (prompt + canvas)
        lines.append((prompt + canvas, slow))
        times = {"research_ms": 1e3 * slow, "ours_ms": 1e3 * fast, "ratio": slow / fast}
        bench.note(f"latency exact {kind}{prompt}+{canvas}", **times, share_of_peak=flops / fast / rate)
    lines.append(
        (
            n := bench.size(1000) + bench.size(512),
            research_pass(bench, n - bench.size(512), bench.size(512), 12),
        )
    )
    return lines


def research_seconds(lines: list[tuple[int, float]]) -> Callable[[float, float], float]:
    """Seconds the research loop would need for so many row-passes with so many tokens in all (a fitted line)."""
    x = torch.tensor([[1.0, n] for n, _ in lines], dtype=torch.float64)
    y = torch.tensor([[t] for _, t in lines], dtype=torch.float64)
    base, slope = torch.linalg.lstsq(x, y).solution[:, 0].tolist()
    return lambda rows, tokens: base * rows + slope * tokens


def speed(run: Run, cost: Callable[[float, float], float]) -> dict[str, float]:
    return {
        "row_passes_per_s": run.row_passes_per_second,
        "ms_per_pass": 1e3 * run.seconds / run.passes,
        "ratio": cost(run.row_passes, run.tokens) / run.seconds,
    }


def throughput(bench: Bench, rate: float, cost: Callable[[float, float], float], *, seconds: float) -> None:
    """A mixed workload through one engine, exact; then with key-value caches."""
    prompts, lengths = workload(128, scale=bench.scale)
    canvas, start, limit = bench.size(512), bench.size(64), bench.size(512)
    plans = {
        "fixed": plan("void", canvas=canvas, block=32),
        "expansion": plan(
            "void-expansion", canvas=start, limit=limit, block=32, window=16, tau_nonvoid=0.3, tau_gap=0.3
        ),
    }
    for name, chosen in plans.items():
        engine = Engine(Scripted(exact(bench, 0), Script(ROLES, lengths)), ROLES, rows=64, tokens=16384)
        run = drive(engine, [(p, chosen) for p in prompts], device=bench.device, seconds=seconds, warm=4)
        flops = 2 * bench.parameters * run.tokens / run.seconds
        bench.note(
            f"throughput exact {name}", **speed(run, cost), share_of_peak=flops / rate, finished=run.finished
        )
    cached = Cached(bench.plain(), 32, graphs=Graphs(2048))
    engine = Engine(
        Scripted(cached, Script(ROLES, lengths)), ROLES, rows=32, tokens=1 << 20, ended=cached.forget
    )
    run = drive(engine, [(p, plans["fixed"]) for p in prompts], device=bench.device, seconds=seconds, warm=4)
    bench.note("throughput dual cache", **speed(run, cost))


def cached_latency(bench: Bench, *, passes: int) -> None:
    """Batch 1 with a dual cache and with a prefix cache: whole blocks, refreshes included."""
    prompt, canvas = bench.size(256), bench.size(512)
    slow = research_pass(bench, prompt, canvas, 24)
    for name, keep in (("dual", True), ("prefix", False)):
        denoise = Cached(bench.plain(), 32, keep_suffix=keep, graphs=Graphs(4096))
        engine_pass(bench, denoise, prompt, plan("void", canvas=canvas, block=32), 29)
        fast = engine_pass(bench, Cached(bench.plain(), 32, keep, denoise.graphs, denoise.store), prompt,
                           plan("void", canvas=canvas, block=32), passes)  # fmt: skip
        bench.note(f"latency {name} cache {prompt}+{canvas}", ours_ms=1e3 * fast, ratio=slow / fast)


def static_batch(bench: Bench, rows: int) -> None:
    """The plain loop on a padded batch, all logits in float64: seconds and memory of one pass, against ours."""
    prompts, lengths = workload(rows, scale=bench.scale)
    canvas = Canvas.blank(prompts, bench.size(512), ROLES, range(rows))
    cuda = bench.device == "cuda"

    @torch.inference_mode()
    def naive() -> None:
        logits = bench.net(canvas.ids.to(bench.device), attention_mask=canvas.inside.long().to(bench.device),
                           use_cache=False).logits  # fmt: skip
        tokens = logits.argmax(-1)
        logits.double().softmax(-1).gather(2, tokens[:, :, None])

    def memory(call: Callable[[], Any]) -> tuple[float, float]:
        call()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if cuda else 0
        begun = now(bench.device)
        call()
        took = now(bench.device) - begun
        return took, (torch.cuda.max_memory_allocated() - held) / 2**30 if cuda else 0.0

    slow, big = memory(naive)
    if cuda:
        torch.cuda.empty_cache()
    engine = Engine(Scripted(exact(bench, 0), Script(ROLES, lengths)), ROLES, rows=rows, tokens=1 << 20)
    for key, prompt in enumerate(prompts):
        engine.submit(prompt, plan("void", canvas=bench.size(512), block=32), key=key)
    fast, small = memory(engine.step)
    waste = max(lengths) * rows / sum(lengths)  # a static batch runs until its slowest row
    bench.note(f"static batch {rows}", plain_ms=1e3 * slow, ours_ms=1e3 * fast, ratio_per_pass=slow / fast,
               ratio_with_waiting=slow / fast * waste, plain_gib=big, ours_gib=small)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each throughput measurement")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    scale = 1.0 if given.device == "cuda" else 0.1
    bench = Bench(network(given.shape, given.device), given.device, int(given.shape == "dream-7b"), scale, {})
    try:
        rate = peak(bench)
        lines = latency(bench, rate)
        cached_latency(bench, passes=32 * 3 - 3)
        static_batch(bench, 32 if given.device == "cuda" else 4)
        if not given.no_compile:
            compiled(bench.plain())
            latency(bench, rate, "compiled ")
        throughput(bench, rate, research_seconds(lines), seconds=given.seconds)
    finally:
        if given.out:
            given.out.write_text(json.dumps({"torch": torch.__version__, **bench.found}, indent=1) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
