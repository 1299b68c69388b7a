"""Timing decoders on the same prompts in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from voidpad.decode.plan import Plan
from voidpad.decode.presets import plan
from voidpad.engine.speed import SPEEDS
from voidpad.models import Model

EXACT = "exact"  # the decoder that all others are compared with
Answers = list[tuple[list[int], int]]  # of each prompt: the tokens, and the passes they took
Decoder = Callable[[Sequence[Sequence[int]]], Answers]


def now(device: torch.device | str) -> float:
    """The time once everything asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def compare(
    named: Mapping[str, Decoder],
    prompts: Sequence[Sequence[int]],
    *,
    device: torch.device | str,
    rounds: int = 1,
    warm: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, float]]:
    """Every decoder on the same prompts, in one run; the first one is what the others are compared with.

    In each round they take turns with a share of the prompts: a machine whose speed drifts slows all alike.
    """
    first = next(iter(named))
    found: dict[str, dict[str, float]] = {
        name: dict.fromkeys(("seconds", "passes", "equal", "tokens"), 0) for name in named
    }
    reference: Answers = []
    clock = partial(now, device)
    for name, seconds, answers in in_turns(named, prompts, rounds=rounds, clock=clock, warm=warm):
        if name == first:
            reference = answers
        row = found[name]
        row["seconds"] += seconds
        row["passes"] += sum(passes for _, passes in answers)
        row["tokens"] += sum(len(tokens) for tokens, _ in answers)
        row["equal"] += sum(ours == theirs for (ours, _), (theirs, _) in zip(answers, reference, strict=True))
        tick()
    for row in found.values():
        row["ratio"] = found[first]["seconds"] / row["seconds"]
        row["tokens_per_s"] = row.pop("tokens") / row["seconds"]
    return found


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
    """Exact decoding first, then each approximation, by name. LLaDA's rules on either family."""
    model.require_full_attention("the comparison of caches")
    exact = plan("void", canvas=canvas, block=block)
    sure = plan("void", canvas=canvas, block=block, threshold=0.9)
    found = {EXACT: drained(model, exact), "exact, threshold 0.9": drained(model, sure)}
    for cache in ("prefix", "dual", "dual:4", "prompt:4"):
        found[f"{cache} cache"] = drained(model, exact, cache=cache, block=block)
        if cache != "prefix":
            found[f"{cache} cache, threshold 0.9"] = drained(model, sure, cache=cache, block=block)
    for name, speed in SPEEDS.items():
        if speed.approximates:
            quick = plan("void", canvas=canvas, block=block, **speed.fields)
            found[f"--speed {name}"] = drained(model, quick, cache=speed.cache, block=block)
    return found


def drained(model: Model, chosen: Plan, **kept: Any) -> Decoder:
    """The plan through the engine; `kept` are options of `Model.engine`."""

    def decode(prompts: Sequence[Sequence[int]]) -> Answers:
        ended = sorted(model.engine(**kept).run(prompts, chosen), key=lambda row: row.key)
        return [(row.tokens, row.passes_decode) for row in ended]

    return decode
