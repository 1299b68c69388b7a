"""EOS overflow: how one decode fills its canvas with EOS, and how often that happens to a set of prompts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

import numpy as np

from voidpad.decode.denoise import Forbid
from voidpad.decode.outcome import Result
from voidpad.decode.plan import Plan
from voidpad.diagnose.trace import Recorder, Trace
from voidpad.engine.batching import Engine
from voidpad.models import Model, PreparedPrompt
from voidpad.roles import Roles

# An answer overflows if it has next to nothing before its first EOS, next to nothing but EOS after, and more EOS than
# words. The last only matters where an early stop left the tail unwritten: a terse answer and the EOS that ended it are
# no overflow, a block filled with EOS is one.
SHORT, FILLED = 0.05, 0.9  # at most this share of the canvas before, at least this share of the rest after
SAFE = 0.02  # share of overflown answers up to which a block size counts as safe
USABLE = 0.5  # mean P(VOID) at the tail of an empty canvas from which a length can be read off


def _effective_length(ids: Sequence[int], roles: Roles) -> int:
    """Slots before the first EOS; all of them without one."""
    return ids.index(roles.eos) if roles.eos in ids else len(ids)


def overflown(ids: Sequence[int], roles: Roles, short: float = SHORT) -> bool:
    """Whether a finished canvas overflowed. Slots that an early stop left unwritten do not count."""
    length = _effective_length(ids, roles)
    rest = [token for token in ids[length:] if token != roles.mask]
    if length > short * len(ids) or not rest:
        return False
    ends = sum(token == roles.eos for token in rest)
    return ends >= FILLED * len(rest) and ends > length


@dataclass(frozen=True)
class Moment:
    """One pass of a trajectory. The EOS suffix starts at the leftmost EOS on the canvas after the commits."""

    number: int
    left: int  # commits before the suffix
    right: int  # commits in it: EOS, or words that will never be read
    first_eos: int | None  # slot, from 0
    eos_share: float  # of all committed slots


@dataclass(frozen=True)
class Trajectory:
    """One decode, read for its EOS."""

    trace: Trace
    moments: tuple[Moment, ...]
    order: np.ndarray  # (L,) the pass that wrote the slot of the final canvas, -1 if none
    effective: int
    overflow: bool

    @property
    def stage2_start(self) -> int | None:
        """The pass in which stage 2 begins: the first with a commit left of the EOS suffix."""
        return next((moment.number for moment in self.moments if moment.left), None)

    @property
    def stage1(self) -> int:
        """Committing passes before that one."""
        return sum(bool(moment.right) for moment in self.moments[: self.stage2_start])

    @property
    def stage2(self) -> int:
        """Committing passes from there on."""
        return sum(bool(moment.left or moment.right) for moment in self.moments) - self.stage1

    def facts(self) -> dict[str, object]:
        """What tables and files say about the decode."""
        header, first = self.trace.header, next((m for m in self.moments if m.first_eos is not None), None)
        return {
            "model": header.model,
            "row": self.trace.row,
            "block": header.plan.get("block"),
            "canvas": len(self.trace.result.ids),
            "first_eos_pass": first and first.number + 1,
            "stage1": self.stage1,
            "stage2": self.stage2,
            "effective": self.effective,
            "overflow": self.overflow,
        }

    def passes(self) -> list[dict[str, object]]:
        """The passes as records."""
        return [
            {
                "row": self.trace.row,
                "pass": moment.number,
                "commits_left": moment.left,
                "commits_right": moment.right,
                "first_eos": None if moment.first_eos is None else moment.first_eos + 1,
                "eos_share": round(moment.eos_share, 4),
            }
            for moment in self.moments
        ]

    def probability(self, name: str) -> np.ndarray:
        """(passes, slots) of "p_eos", "p_void" or "top"; NaN where a pass had no such slot, or no record."""
        width = max(step.length for step in self.trace.passes)
        grid = np.full((len(self.trace.passes), width), np.nan, dtype=np.float32)
        for row, step in zip(grid, self.trace.passes, strict=True):
            values = getattr(step, name)
            if values is not None:
                row[: step.length] = values
        return grid


def trajectory(trace: Trace, short: float = SHORT) -> Trajectory:
    """What a recorded decode says about EOS; any trace will do, whoever recorded it."""
    roles, moments = trace.header.roles, []
    canvas, order = trace.start, np.full(len(trace.start), -1)
    for step, after in zip(trace.passes, trace.canvases(), strict=True):
        for slot, token, _ in step.commits:
            canvas[slot], order[slot] = token, step.n
        ends = np.flatnonzero(canvas == roles.eos)
        start = int(ends[0]) if len(ends) else None
        left = sum(start is None or slot < start for slot, _, _ in step.commits)
        share = len(ends) / max(1, int((canvas != roles.mask).sum()))
        moments.append(Moment(step.n, left, len(step.commits) - left, start, share))
        for edit in step.edits:
            order = edit.apply(order, new=-1)  # new slots have no commit time yet
        canvas = after
    ids = list(trace.result.ids)
    length = _effective_length(ids, roles)
    return Trajectory(trace, tuple(moments), order, length, overflown(ids, roles, short))


def record(model: Model, prompt: Sequence[int], plan: Plan, *, name: str) -> Trace:
    """Decode with P(EOS) and P(VOID) of every slot at every pass."""
    recorder = Recorder(model, plan_name=name)
    model.generate(PreparedPrompt(tuple(prompt), plan), observe=recorder.observe, listen=recorder)
    return recorder.traces[0]


@dataclass(frozen=True, kw_only=True)
class Answer(Result):
    """The answer to one prompt under one block size."""

    block: int
    row: int  # of the prompt
    effective: int  # slots before the first EOS
    overflow: bool
    short: bool  # next to nothing before the first EOS, whatever follows
    right: bool | None = None  # None where nobody can tell

    def facts(self) -> dict[str, object]:
        """What tables and files say about the answer: all but its token ids."""
        names = ("block", "row", "text", "canvas", "effective", "overflow", "short", "right")
        values = {name: getattr(self, name) for name in names}
        return {**values, "passes": self.passes_decode, "stop_reason": self.stop_reason}


def survey(
    model: Model,
    prompts: Sequence[Sequence[int]],
    plans: Sequence[Plan],
    *,
    judges: Sequence[Callable[[str], bool] | None] = (),
    short: float = SHORT,
    rows: int = 32,
    tokens: int = 16384,
    forbid: Forbid | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Every prompt under every plan, all in the passes of one engine; plan by plan, in the prompts' order.

    `judges` say of each prompt whether an answer is right, `rows` and `tokens` bound one pass and change no answer, and
    `forbid` edits the attention.
    """
    engine = Engine(model.denoiser(forbid=forbid), model.roles, rows=rows, tokens=tokens)
    jobs = [(plan, row) for plan in plans for row in range(len(prompts))]
    for key, (plan, row) in enumerate(jobs):
        engine.submit(prompts[row], model.fit(prompts[row], plan), key=key)
    answers: dict[int, Answer] = {}
    for _, outcome in engine.outcomes():
        plan, row = jobs[outcome.key]
        length = _effective_length(outcome.ids, model.roles)
        result, judge = model.result(outcome, plan), judges[row] if judges else None
        answers[outcome.key] = Answer(
            **vars(result),
            block=plan.block,
            row=row,
            effective=length,
            overflow=overflown(outcome.ids, model.roles, short),
            short=length <= short * outcome.canvas,
            right=judge(result.text) if judge else None,
        )
        tick()
    return [answers[key] for key in sorted(answers)]


@dataclass(frozen=True)
class Rate:
    """One block size over a set of prompts."""

    block: int
    answers: int
    overflows: int
    short: int
    effective: float  # mean
    passes: float  # mean
    right: float | None = None  # share of those that can be judged

    @property
    def share(self) -> float:
        return self.overflows / self.answers


def rates(answers: Sequence[Answer]) -> list[Rate]:
    """Overflow by block size, smallest first."""
    by_block = []
    for block, group in groupby(sorted(answers, key=lambda a: a.block), key=lambda a: a.block):
        some = list(group)
        counts = (len(some), sum(a.overflow for a in some), sum(a.short for a in some))
        means = (fmean(a.effective for a in some), fmean(a.passes_decode for a in some))
        right = [a.right for a in some if a.right is not None]
        by_block.append(Rate(block, *counts, *means, fmean(right) if right else None))
    return by_block


def verdict(by_block: Sequence[Rate], void: float | None) -> str:
    """What was measured, in sentences. `void` is the mean P(VOID) at the tail of an empty canvas."""
    worst, safe = by_block[-1], _safe_blocks(by_block)
    said = f"{worst.overflows} of {worst.answers} answers overflow at block {worst.block}. "
    if not safe:
        said += "No block size that was tried is safe. "
    elif len(by_block) > 1:
        said += f"Safe block sizes: {', '.join(map(str, safe))}. "
    if void is None:
        return f"{said}This checkpoint has no VOID token."
    signal = f"{'a' if void >= USABLE else 'no'} usable VOID signal"
    return f"{said}This checkpoint has {signal} (mean P(VOID) {void:.3f} at the tail of an empty canvas)."


def _safe_blocks(by_block: Sequence[Rate]) -> list[int]:
    """The block sizes at which few enough answers overflow, smallest first."""
    return [rate.block for rate in by_block if rate.share <= SAFE]


def advice(
    by_block: Sequence[Rate],
    void: float | None,
    *,
    model: str,
    plan: str,
    adapter: str | None = None,
    canvas: int | None = None,
) -> list[str]:
    """What to do about it, best first: what works now, then smaller blocks, then training.

    `model`, `adapter`, `plan` and `canvas` are those of the decodes, by the names that the user types.
    """
    safe, smallest = _safe_blocks(by_block), by_block[0].block
    if by_block[-1].block in safe:
        return []
    checkpoint = f"--model {shlex.quote(model)}" + (f" --adapter {shlex.quote(adapter)}" if adapter else "")
    size = f" --canvas {canvas}" if canvas else ""
    chosen, decoded = f"{checkpoint} --plan {shlex.quote(plan)}{size}", plan.partition("@")[0]
    usable, lines = void is not None and void >= USABLE, []
    if usable and decoded in ("void", "void-expansion"):
        lines.append(
            "This checkpoint was decoded with VOID, which it knows: the model wants so short an answer."
        )
    elif usable:
        why = "this checkpoint knows VOID, so decode with it"
        lines.append(f"Now: {why}: voidpad generate {checkpoint} --plan void{size}")
    elif decoded not in ("eos-last", "eos-never"):
        why = "write EOS last, which needs no training and works at any block size"
        lines.append(f"Now: {why}: voidpad generate {checkpoint} --plan eos-last{size}")
    if safe:
        lines.append(f"Or: decode with blocks of {safe[-1]}: voidpad generate {chosen} --block {safe[-1]}")
    else:
        tried = f"voidpad analyze overflow {chosen} --blocks {max(1, smallest // 2)}"
        lines.append(f"Or: look for a safe block size below {smallest}: {tried}")
    if not usable:
        lines.append(
            "For good: fine-tune with VOID padding on chats of your own (voidpad data prepare, voidpad train --init; "
            "an adapter is merged first), then decode with --plan void."
        )
    return lines
