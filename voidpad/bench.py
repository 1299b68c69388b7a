"""Measuring: the plain research loop, scripted workloads, and timers that wait for the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

from voidpad.decode.canvas import Canvas
from voidpad.decode.loop import Outcome
from voidpad.decode.plan import Plan
from voidpad.engine import Engine
from voidpad.models import Model
from voidpad.roles import Roles

PASSES = {"gsm8k": 134, "math500": 418, "humaneval": 73, "mbpp": 64}  # the paper's, LLaDA with VoidExpansion
PROMPTS = {"gsm8k": 900, "math500": 160, "humaneval": 150, "mbpp": 600}  # tokens, few-shot examples included


@dataclass(frozen=True)
class Research:
    """Decoding as public research code does it: one row, logits of the whole row, float64 softmax, host reads."""

    net: Any  # a transformers causal LM with full attention
    roles: Roles
    shift: int = 0
    ban: tuple[int, ...] = ()
    script: Callable[[int], int] | None = None  # canvas slot -> token, for random weights

    @torch.inference_mode()
    def __call__(
        self, prompt: Sequence[int], *, canvas: int, block: int, passes: int | None = None
    ) -> tuple[list[int], int]:
        """The canvas and the passes used; at most `passes` if given."""
        device = self.net.device
        row = torch.tensor([[*prompt, *[self.roles.mask] * canvas]], device=device)
        start, used = len(prompt), 0
        for left in range(start, start + canvas, block):
            while (row[:, left : left + block] == self.roles.mask).any().item() and used != passes:
                self._pass(row, left, left + block, start)
                used += 1
                if self._ended(row, start):
                    return row[0, start:].tolist(), used
        return row[0, start:].tolist(), used

    def _pass(self, row: Tensor, left: int, right: int, start: int) -> None:
        logits = self.net(row, use_cache=False).logits
        if self.shift:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
        probability = logits.double().softmax(-1)
        if self.ban:
            logits[:, :, list(self.ban)] = -torch.inf
        tokens = logits.index_fill(2, torch.tensor([self.roles.mask], device=row.device), -torch.inf).argmax(
            -1
        )
        score = probability.gather(2, tokens[:, :, None])[:, :, 0]
        if self.script is not None:
            steered = [self.script(slot) for slot in range(row.shape[1] - start)]
            tokens[0, start:] = torch.tensor(steered, device=row.device)
            score = torch.linspace(1, 0, row.shape[1], device=row.device)[None].double()
        open_slots = row == self.roles.mask
        open_slots[:, :left] = open_slots[:, right:] = False
        place = score.masked_fill(~open_slots, -torch.inf).argmax(1)
        row[0, place] = tokens[0, place]

    def _ended(self, row: Tensor, start: int) -> bool:
        canvas = row[0, start:]
        ends = (canvas == self.roles.eos).nonzero()
        return bool(len(ends)) and not (canvas[: ends[0].item()] == self.roles.mask).any().item()


@dataclass(frozen=True)
class Script:
    """Answers of given lengths: words, one EOS, VOID after it. Key k answers with lengths[k] tokens."""

    roles: Roles
    lengths: Sequence[int]
    word: int = 5

    def token(self, key: int, slot: int) -> int:
        end = self.lengths[key]
        void = self.roles.eos if self.roles.void is None else self.roles.void
        return self.word if slot < end else self.roles.eos if slot == end else void

    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        row, column = where.nonzero(as_tuple=True)
        slot = column - canvas.prompt[row]
        end = torch.tensor([self.lengths[key] for key in canvas.key.tolist()])[row]
        void = self.roles.eos if self.roles.void is None else self.roles.void
        return torch.where(slot < end, self.word, torch.where(slot == end, self.roles.eos, void))


def workload(count: int, *, scale: float = 1.0, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    """Prompts and answer lengths that mix the paper's four benchmarks."""
    rng = torch.Generator().manual_seed(seed)
    prompts, lengths = [], []
    for number in range(count):
        task = list(PASSES)[number % len(PASSES)]
        jitter = 0.7 + 0.6 * torch.rand(2, generator=rng)
        size = max(4, int(PROMPTS[task] * scale * float(jitter[0])))
        prompts.append([7 + (number + i) % 40 for i in range(size)])
        lengths.append(max(1, min(int(500 * scale), int(PASSES[task] * scale * float(jitter[1])) - 1)))
    return prompts, lengths


def now(device: torch.device | str) -> float:
    """The time once everything asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(call: Callable[[], Any], device: torch.device | str) -> tuple[float, Any]:
    begun = now(device)
    value = call()
    return now(device) - begun, value


@dataclass(frozen=True)
class Run:
    """What an engine did in the time it was given."""

    seconds: float
    passes: int  # forward passes
    row_passes: int  # rows summed over passes
    tokens: int  # tokens summed over passes
    finished: int

    @property
    def row_passes_per_second(self) -> float:
        return self.row_passes / self.seconds


def drive(
    engine: Engine,
    jobs: Sequence[tuple[Sequence[int], Plan]],
    *,
    device: str,
    seconds: float = 1e9,
    warm: int = 0,
) -> Run:
    """Push jobs through an engine for at most `seconds`, after `warm` passes that are not timed."""
    for key, (prompt, plan) in enumerate(jobs):
        engine.submit(prompt, plan, key=key)
    for _ in range(warm):
        engine.step()
    begun, passes, rows, tokens, finished = now(device), 0, 0, 0, 0
    while engine.busy and time.perf_counter() - begun < seconds:
        finished += len(engine.step())
        passes += 1
        rows += engine.took_part
        tokens += engine.tokens_read
    return Run(now(device) - begun, passes, rows, tokens, finished)


def compare(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    canvas: int,
    block: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, float]]:
    """The research loop, the exact engine and each approximation on the same prompts, in one run."""
    net: Any = model.net.get_base_model() if isinstance(model.net, PeftModel) else model.net
    ban = model.roles.ids(["void"])
    loop = Research(net, model.roles, model.family.shift, ban=ban)
    exact = model.plan("void", canvas=canvas, block=block)
    sure = model.plan("void", canvas=canvas, block=block, threshold=0.9)
    found: dict[str, dict[str, float]] = {}
    begun = now(model.device)
    plain = [loop(p, canvas=canvas, block=block) for p in prompts]
    base = now(model.device) - begun
    answers = [cut(ids, model.roles.eos) for ids, _ in plain]
    size = sum(map(len, answers))
    found["research"] = {"seconds": base, "ratio": 1.0, "passes": sum(n for _, n in plain), "equal": len(prompts),
                         "tokens_per_s": size / base}  # fmt: skip
    tick()
    runs: dict[str, tuple[Engine, Plan]] = {
        "exact": (model.engine(), exact),
        "exact, threshold 0.9": (model.engine(), sure),
        "prefix cache": (model.engine(cache="prefix", block=block), exact),
        "dual cache": (model.engine(cache="dual", block=block), exact),
        "dual cache, threshold 0.9": (model.engine(cache="dual", block=block), sure),
    }
    for name, (engine, chosen) in runs.items():
        seconds, ended = timed(partial(drained, engine, prompts, chosen), model.device)
        equal = sum(o.tokens == a for o, a in zip(ended, answers, strict=True))
        found[name] = {"seconds": seconds, "ratio": base / seconds, "passes": sum(o.passes_decode for o in ended),
                       "equal": equal, "tokens_per_s": sum(len(o.tokens) for o in ended) / seconds}  # fmt: skip
        tick()
    return found


def drained(engine: Engine, prompts: Sequence[Sequence[int]], chosen: Plan) -> list[Outcome]:
    return sorted(engine.run(prompts, chosen), key=lambda ended: ended.key)


def cut(ids: list[int], eos: int) -> list[int]:
    return ids[: ids.index(eos) + 1] if eos in ids else ids
