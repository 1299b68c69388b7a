"""Measuring: the plain research loop, scripted workloads, and timers that wait for the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from voidpad.decode.plan import Plan, plan
from voidpad.engine.speed import SPEEDS
from voidpad.models import Model
from voidpad.roles import Roles


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
        row = torch.tensor([[*prompt, *[self.roles.mask] * canvas]], device=self.net.device)
        start, used = len(prompt), 0
        steered = None if self.script is None else self._steered(start, canvas)
        for left in range(start, start + canvas, block):
            while (row[:, left : left + block] == self.roles.mask).any().item() and used != passes:
                self._pass(row, left, left + block, steered)
                used += 1
                if self._ended(row, start):
                    return row[0, start:].tolist(), used
        return row[0, start:].tolist(), used

    def _steered(self, start: int, canvas: int) -> tuple[Tensor, Tensor]:
        """The script's tokens, and scores that fall from left to right."""
        assert self.script is not None
        tokens = [0] * start + [self.script(slot) for slot in range(canvas)]
        device = self.net.device
        return torch.tensor([tokens], device=device), torch.linspace(1, 0, start + canvas, device=device)[
            None
        ].double()

    def _pass(self, row: Tensor, left: int, right: int, steered: tuple[Tensor, Tensor] | None) -> None:
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
        if steered is not None:
            tokens, score = steered
        open_slots = row == self.roles.mask
        open_slots[:, :left] = open_slots[:, right:] = False
        place = score.masked_fill(~open_slots, -torch.inf).argmax(1)
        row[0, place] = tokens[0, place]

    def _ended(self, row: Tensor, start: int) -> bool:
        canvas = row[0, start:]
        ends = (canvas == self.roles.eos).nonzero()
        return bool(len(ends)) and not (canvas[: ends[0].item()] == self.roles.mask).any().item()


def now(device: torch.device | str) -> float:
    """The time once everything asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(call: Callable[[], Any], device: torch.device | str) -> tuple[float, Any]:
    begun = now(device)
    value = call()
    return now(device) - begun, value


RESEARCH = "research"
Answers = list[tuple[list[int], int]]  # of each prompt: the tokens, and the passes they took
Decoder = Callable[[Sequence[Sequence[int]]], Answers]


@dataclass
class _Tally:
    """What a decoder has done so far."""

    seconds: float = 0.0
    passes: int = 0
    tokens: int = 0
    equal: int = 0  # answers that are the research loop's

    def add(self, seconds: float, found: Answers, reference: Answers) -> None:
        self.seconds += seconds
        self.passes += sum(passes for _, passes in found)
        self.tokens += sum(len(tokens) for tokens, _ in found)
        self.equal += sum(ours == theirs for (ours, _), (theirs, _) in zip(found, reference, strict=True))


def compare(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    canvas: int,
    block: int,
    rounds: int = 1,
    compile_layers: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, float]]:
    """The research loop, the exact engine and each approximation on the same prompts, in one run.

    In each round they take turns with a share of the prompts: a machine whose speed drifts slows all alike.
    """
    if compile_layers:
        model.compiled()
    named = decoders(model, canvas, block)
    tallies = {name: _Tally() for name in named}
    reference: Answers = []
    for name, seconds, answers in in_turns(
        named, prompts, rounds=rounds, clock=partial(now, model.device), warm=2 if compile_layers else 0
    ):
        if name == RESEARCH:
            reference = answers
        tallies[name].add(seconds, answers, reference)
        tick()
    base = tallies[RESEARCH].seconds
    return {
        name: {"seconds": tally.seconds, "ratio": base / tally.seconds, "passes": tally.passes,
               "equal": tally.equal, "tokens_per_s": tally.tokens / tally.seconds}
        for name, tally in tallies.items()
    }  # fmt: skip


def in_turns(
    named: Mapping[str, Decoder],
    prompts: Sequence[Sequence[int]],
    *,
    rounds: int,
    clock: Callable[[], float],
    warm: int = 0,
) -> Iterator[tuple[str, float, Answers]]:
    """(name, seconds, answers): in each round every decoder answers the same share of the prompts.

    `warm` prompts are answered first, untimed, where the first passes of a decoder compile something.
    """
    for turn in range(rounds):
        share = prompts[turn::rounds]
        for name, decode in named.items():
            if warm and turn == 0:
                decode(share[:warm])
            begun = clock()
            answers = decode(share)
            yield name, clock() - begun, answers


def decoders(model: Model, canvas: int, block: int) -> dict[str, Decoder]:
    """By name, the research loop first. LLaDA's rules on either family: the loop knows no others."""
    model.require_full_attention("the research loop")
    exact = plan("void", canvas=canvas, block=block)
    sure = plan("void", canvas=canvas, block=block, threshold=0.9)
    caches = {f"{cache} cache": cache for cache in ("prefix", "dual", "dual:4", "prompt:4")}
    found = {RESEARCH: _plainly(model, canvas, block), "exact": drained(model, exact),
             "exact, threshold 0.9": drained(model, sure)}  # fmt: skip
    for name, cache in caches.items():
        found[name] = drained(model, exact, cache=cache, block=block)
        if cache != "prefix":
            found[f"{name}, threshold 0.9"] = drained(model, sure, cache=cache, block=block)
    for name, speed in SPEEDS.items():
        if speed.approximates:
            quick = plan("void", canvas=canvas, block=block, **speed.fields)
            found[f"--speed {name}"] = drained(model, quick, cache=speed.cache, block=block)
    return found


def _plainly(model: Model, canvas: int, block: int) -> Decoder:
    """The research loop, which must not profit from compiled layers."""
    loop = Research(model.base, model.roles, model.family.shift, ban=model.roles.ids(["void"]))

    def decode(prompts: Sequence[Sequence[int]]) -> Answers:
        with torch.compiler.set_stance("force_eager"):
            rows = [loop(prompt, canvas=canvas, block=block) for prompt in prompts]
        return [(_cut(ids, model.roles.eos), passes) for ids, passes in rows]

    return decode


def drained(model: Model, chosen: Plan, **kept: Any) -> Decoder:
    """The plan through the engine; `kept` are options of `Model.engine`."""

    def decode(prompts: Sequence[Sequence[int]]) -> Answers:
        ended = sorted(model.engine(**kept).run(prompts, chosen), key=lambda row: row.key)
        return [(row.tokens, row.passes_decode) for row in ended]

    return decode


def _cut(ids: list[int], eos: int) -> list[int]:
    return ids[: ids.index(eos) + 1] if eos in ids else ids
