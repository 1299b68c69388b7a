"""Infilling: a text with gaps, the fixed text on both sides of each gap kept as it is.

A gap is written `[[gap]]`, `[[gap:12]]` (so many slots) or `[[gap:4-32]]` (at least and at most so many). A gap ends
when it is full: no EOS is written in it. So its length must be chosen before decoding, by one of these rules.

- `fixed`: a gap without a number has `slots` slots; one with bounds has its largest number.
- `cal`: the length whose first pass is surest, relative to what a gap of that length usually shows (arXiv 2602.00476).
  Probes climb from 8 slots in both directions and stop after four lengths without a gain.
- `void-gap`: one probe of the longest gap; the slots that prefer VOID are dropped. For models that were trained with
  VOID inside gaps, such as the built-in `tiny-void-gap`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from voidpad.constrain.row import GapConstraints
from voidpad.decode.rows import Rows
from voidpad.errors import ConfigError
from voidpad.models.text import encode_text

if TYPE_CHECKING:
    from voidpad.decode.loop import Observe
    from voidpad.decode.outcome import Outcome, Result
    from voidpad.decode.plan import Plan
    from voidpad.engine.events import Event
    from voidpad.models.model import Model

LengthRule = Literal["fixed", "cal", "void-gap"]
Run = Callable[[Callable[[], torch.Tensor]], torch.Tensor]  # how a probe is run: on which thread
MOST_GAPS, MOST_SLOTS = 16, 64
# Slots that `void-gap` probes where the template sets no bounds: the most that its training left over.
VOID_PROBE = 24
FIRST_LENGTH, PATIENCE = 8, 4  # of `cal`: where it starts, and how many lengths without a gain end it


@dataclass(frozen=True)
class Gap:
    """How many slots a gap may have. `stated` says that the template names a number."""

    least: int = 1
    most: int = MOST_SLOTS
    stated: bool = False


@dataclass(frozen=True)
class Filled:
    """A filled template."""

    text: str  # the whole text
    gaps: tuple[str, ...]  # what was written in each gap
    slots: tuple[int, ...]  # the length of each gap in tokens
    passes_probe: int  # passes that chose the lengths
    result: Result  # the row that was decoded


def parse_template(text: str, marker: str = "gap") -> tuple[list[str], list[Gap]]:
    """The fixed texts of a template and the gaps between them; there is one text more than gaps."""
    pattern = rf"\[\[{re.escape(marker)}(?::(\d{{1,4}})(?:-(\d{{1,4}}))?)?\]\]"
    texts, gaps, at = [], [], 0
    for found in re.finditer(pattern, text):
        texts.append(text[at : found.start()])
        at = found.end()
        least, most = found.group(1), found.group(2)
        gaps.append(Gap() if least is None else Gap(int(least), int(most or least), stated=True))
    texts.append(text[at:])
    if not gaps:
        raise ConfigError(f"template: holds no gap; write [[{marker}]] where text is missing.")
    if len(gaps) > MOST_GAPS:
        raise ConfigError(f"template: {len(gaps)} gaps are over the limit of {MOST_GAPS}.")
    if not texts[0]:
        raise ConfigError("template: begins with a gap; give it at least one character before the first one.")
    for gap in gaps:
        if not 1 <= gap.least <= gap.most <= 2048:
            raise ConfigError(
                f"template: a gap of {gap.least} to {gap.most} slots; use 1 to 2048, least first."
            )
    return texts, gaps


@dataclass(frozen=True)
class Layout:
    """A template whose gaps have their lengths: what the engine decodes, and how its outcome becomes text."""

    texts: tuple[str, ...]
    ids: list[int]  # masks in the gaps
    plan: Plan
    constraint: GapConstraints | None
    slots: tuple[int, ...]
    passes_probe: int

    def written(self, model: Model, outcome: Outcome) -> tuple[str, ...]:
        """What stands in each gap."""
        return tuple(str(model.tokenizer.decode(list(gap))) for gap in outcome.gaps)

    def whole(self, gaps: Sequence[str]) -> str:
        """The whole text with these gaps."""
        return self.texts[0] + "".join(gap + text for gap, text in zip(gaps, self.texts[1:], strict=True))


def fill(
    model: Model,
    template: str,
    plan: str | Plan | None = None,
    *,
    length: LengthRule = "cal",
    slots: int = 16,
    marker: str = "gap",
    constraint: Any = None,
    seed: int = 0,
    observe: Observe | None = None,
    listen: Callable[[Event], None] | None = None,
    **fields: Any,
) -> Filled:
    """Write the missing parts of a text: `model.fill("def area(r):\\n    return [[gap]]\\n")`.

    `[[gap:12]]` has 12 slots, `[[gap:4-32]]` between 4 and 32. `length` says how the others' number is chosen:
    "fixed" takes `slots`, "cal" probes several lengths, "void-gap" reads it from one pass of a model that was
    trained for it. `constraint` holds for every gap, or is a list with one, or None, for each. All gaps are one
    block; `plan` and its fields choose the other rules, such as `threshold`. `observe` and `listen` are `generate`'s.
    """
    # Banned before the plan is built, so that renormalised scores leave them out too.
    never = ("ends",) if model.roles.void is None else ("ends", "void")
    chosen = model.plan(plan or "original", **{"ban": never, **fields})
    layout = lay_out(
        model, template, chosen, length=length, slots=slots, marker=marker, constraint=constraint
    )
    engine = model.engine(block=layout.plan.block)
    engine.submit(layout.ids, layout.plan, seed=seed, constraint=layout.constraint, observe=observe)
    [(_, outcome)] = engine.outcomes(listen)
    gaps = layout.written(model, outcome)
    result = model.result(outcome, layout.plan)
    return Filled(layout.whole(gaps), gaps, layout.slots, layout.passes_probe, result)


def lay_out(
    model: Model,
    template: str,
    plan: Plan,
    *,
    length: LengthRule = "cal",
    slots: int = 16,
    marker: str = "gap",
    constraint: Any = None,
    run: Run = lambda probe: probe(),
) -> Layout:
    """Choose the length of every gap.

    `constraint` is one for every gap, or a list with one, or None, for each. Probes are passed to `run`, so that a
    server can have its engine's thread make them.
    """
    model.require_full_attention("infilling")
    texts, gaps = parse_template(template, marker)
    fixed = [encode_text(model.tokenizer, text, roles=model.roles) for text in texts]
    wanted = list(constraint) if isinstance(constraint, list | tuple) else [constraint] * len(gaps)
    if len(wanted) != len(gaps):
        raise ConfigError(f"constraint: {len(wanted)} for {len(gaps)} gaps; give one, or None, for each.")
    filling = plan.replace(fill=True)
    held = [None if one is None else model.constrain(one, filling, closed=True) for one in wanted]
    gaps = [
        gap if own is None else Gap(max(gap.least, own.shortest), gap.most, gap.stated)
        for gap, own in zip(gaps, held, strict=True)
    ]
    for gap in gaps:
        if gap.least > gap.most:
            raise ConfigError(
                f"template: a gap of at most {gap.most} slots is too short for its constraint, which needs {gap.least}."
            )
    text_length = sum(map(len, fixed))
    lengths, probes = [gap.least for gap in gaps], 0
    if text_length + sum(lengths) <= model.context:
        lengths, probes = _lengths(model, fixed, gaps, length, slots, run)
    if text_length + sum(lengths) > model.context:
        raise ConfigError(
            f"template: its gaps do not fit the model's context of {model.context}; shorten it."
        )
    ids = _laid_out(fixed, lengths, model.roles.mask)
    constraints = GapConstraints(tuple(held)) if any(one is not None for one in held) else None
    return Layout(tuple(texts), ids, plan.for_gaps(ids, model.roles), constraints, tuple(lengths), probes)


def _laid_out(fixed: Sequence[Sequence[int]], lengths: Sequence[int], mask: int) -> list[int]:
    ids = list(fixed[0])
    for size, text in zip(lengths, fixed[1:], strict=True):
        ids += [mask] * size + list(text)
    return ids


def _lengths(
    model: Model, fixed: Sequence[Sequence[int]], gaps: Sequence[Gap], rule: LengthRule, slots: int, run: Run
) -> tuple[list[int], int]:
    """The number of slots of each gap, chosen from left to right, and the passes that took."""
    if rule not in ("fixed", "cal", "void-gap"):
        raise ConfigError(f"length={rule!r} is unknown; use fixed, cal or void-gap.")
    if rule == "void-gap" and model.roles.void is None:
        raise ConfigError("length='void-gap' needs a model with a VOID token; use cal.")
    chosen = [gap.most if gap.stated else min(max(slots, gap.least), gap.most) for gap in gaps]
    if rule == "fixed":
        return chosen, 0
    probes = 0
    for place, gap in enumerate(gaps):
        if gap.least == gap.most:
            continue
        probe = partial(_first_pass, model, fixed, tuple(chosen), place, run)
        if rule == "void-gap":
            most = gap.most if gap.stated else max(VOID_PROBE, gap.least)
            longest = min(most, model.context - sum(map(len, fixed)) - sum(chosen) + chosen[place])
            best = probe([longest])[0].argmax(-1)
            kept = longest - int(best.eq(int(model.roles.void or 0)).sum())
            chosen[place], used = min(max(kept, gap.least), longest), 1
        else:
            chosen[place], used = _surest_length(probe, gap)
        probes += used
    return chosen, probes


def _surest_length(probe: Callable[[Sequence[int]], torch.Tensor], gap: Gap) -> tuple[int, int]:
    """`cal`: the length with the highest mean confidence over its baseline, and the lengths that were probed."""
    seen: dict[int, float] = {}
    start = min(max(FIRST_LENGTH, gap.least), gap.most)
    for step in (1, -1):
        at, peak, falls = start, -math.inf, 0
        while gap.least <= at <= gap.most and falls < PATIENCE:
            if at not in seen:
                ahead = range(at, at + 8 * step, step)
                sizes = [size for size in ahead if gap.least <= size <= gap.most and size not in seen]
                for size, best in zip(sizes, probe(sizes).amax(-1), strict=True):
                    seen[size] = float(best[:size].mean()) / baseline(size)
            falls = falls + 1 if seen[at] <= peak else 0
            peak = max(peak, seen[at])
            at += step
    return max(seen, key=lambda size: seen[size]), len(seen)


def baseline(size: int) -> float:
    """The confidence that a gap of this length shows whatever is missing there; constants of arXiv 2602.00476."""
    return math.exp(-1.77 * size) + 0.56 * math.exp(-0.06 * size) + 0.24


def _first_pass(
    model: Model,
    fixed: Sequence[Sequence[int]],
    chosen: Sequence[int],
    place: int,
    run: Run,
    sizes: Sequence[int],
) -> torch.Tensor:
    """Probabilities (B, most slots, V) of the first pass in one gap, which has another of the sizes in each row."""
    lengths = [[*chosen[:place], size, *chosen[place + 1 :]] for size in sizes]
    canvas = Rows.with_gaps([_laid_out(fixed, one, model.roles.mask) for one in lengths], model.roles)
    begin = sum(map(len, fixed[: place + 1])) + sum(chosen[:place])
    ends = torch.tensor(sizes) + begin
    where = (canvas.offset >= begin) & (canvas.offset < ends[:, None])

    @torch.inference_mode()
    def probabilities() -> torch.Tensor:
        return model.default_denoiser()(canvas, where).double().softmax(-1).cpu()

    p = run(probabilities)
    grid = torch.zeros(len(sizes), max(sizes), p.shape[-1], dtype=p.dtype)
    grid[torch.arange(max(sizes))[None] < torch.tensor(sizes)[:, None]] = p
    return grid
