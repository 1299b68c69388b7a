"""Scripted workloads of the paper's sizes, and meters of what an engine does with them.

A scripted denoiser pays for every forward pass and then answers by a script, so that random weights of any size can be
timed on answers of known lengths.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from voidpad.decode.loop import Denoiser
from voidpad.decode.rows import Rows, first, send
from voidpad.engine.batching import Engine
from voidpad.engine.events import Finished
from voidpad.experiments.bench import now
from voidpad.roles import Roles

PASSES = {"gsm8k": 134, "math500": 418, "humaneval": 73, "mbpp": 64}  # the paper's, LLaDA with VoidExpansion
PROMPTS = {"gsm8k": 900, "math500": 160, "humaneval": 150, "mbpp": 600}  # tokens, few-shot examples included


@dataclass(frozen=True)
class Script:
    """Answers from left to right: words, one EOS, VOID after it. Key k answers with lengths[k] words."""

    roles: Roles
    lengths: Sequence[int]
    word: int = 5
    pace: float = 1.0  # slots of which the answerer is sure at a time

    def token(self, key: int, slot: int) -> int:
        end = self.lengths[key]
        return self.word if slot < end else self.roles.eos if slot == end else self.void

    @property
    def void(self) -> int:
        return self.roles.eos if self.roles.void is None else self.roles.void

    def __call__(self, canvas: Rows, where: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and whether they are sure, at the True places of `where`."""
        row, column = where.nonzero(as_tuple=True)
        slot = column - canvas.prompt[row]
        end = torch.tensor([self.lengths[key] for key in canvas.key.tolist()])[row]
        tokens = torch.where(slot < end, self.word, torch.where(slot == end, self.roles.eos, self.void))
        lead = first(where, otherwise=canvas.prompt) - canvas.prompt
        return tokens, (slot / self.pace).floor() == (lead / self.pace).floor()[row]


@dataclass(frozen=True)
class Scripted:
    """Pays for the inner denoiser's pass, then answers by a script: real cost, chosen tokens."""

    inner: Denoiser
    script: Script

    def __call__(self, canvas: Rows, where: Tensor) -> Tensor:
        logits = self.inner(canvas, where)
        tokens, sure = self.script(canvas, where)
        unsure = math.log(4 * logits.shape[1])  # a probability of 0.8 beside a vocabulary of zeros
        score = torch.where(sure, 30.0, unsure).to(logits.dtype)
        tokens, score = send(tokens, logits.device), send(score, logits.device)
        return torch.zeros_like(logits).scatter(1, tokens[:, None], score[:, None])


@dataclass
class PassMeter:
    """A denoiser that notes what a plain loop would have to do for the same progress: row length -> passes."""

    inner: Denoiser
    work: Counter[int] = field(default_factory=Counter)
    before: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __call__(self, canvas: Rows, where: Tensor) -> Tensor:
        rows = zip(canvas.handle.tolist(), canvas.stop.tolist(), canvas.masked.sum(1).tolist(), strict=True)
        for key, length, masks in rows:
            was = self.before.get(key, (length, masks + 1))
            self.work[length] += max(1, was[1] - masks) if was[0] == length else 1
            self.before[key] = (length, masks)
        return self.inner(canvas, where)


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


@dataclass(frozen=True)
class TimedRun:
    """What an engine did in the time it was given."""

    seconds: float
    passes: int  # forward passes
    row_passes: int  # rows summed over passes
    tokens: int  # tokens summed over passes
    finished: int

    @property
    def row_passes_per_second(self) -> float:
        return self.row_passes / self.seconds


def settle(engine: Engine, script: Script, passes: int) -> None:
    """Bring an engine to the middle of its work at no cost: these passes answer by the script alone."""
    real = engine.denoise
    engine.denoise = Scripted(lambda canvas, where: torch.zeros(int(where.sum()), 64), script)
    for _ in range(passes):
        engine.step()
    engine.denoise = real


def drive(engine: Engine, *, device: str, seconds: float = 1e9, passes: int | None = None) -> TimedRun:
    """Step an engine for at most so many seconds and passes."""
    begun, used, rows, tokens, finished = now(device), 0, 0, 0, 0
    while engine.busy and time.perf_counter() - begun < seconds and used != passes:
        finished += sum(isinstance(event, Finished) for event in engine.step())
        used += 1
        rows += engine.rows_read
        tokens += engine.tokens_read
    return TimedRun(now(device) - begun, used, rows, tokens, finished)
