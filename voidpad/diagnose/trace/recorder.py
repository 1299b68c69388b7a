"""Recording: steps of the decoder in, traces out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas
from voidpad.decode.loop import Step
from voidpad.decode.plan import Plan
from voidpad.diagnose.trace.format import DETAILS, Detail, Edit, Header, Pass, Prompt, Summary, Trace
from voidpad.diagnose.trace.trace_files import write
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.models import Model


class Recorder:
    """Call it with every step of one `decode`; give that decode `observe`. Finished rows are its traces.

    A trace stays in memory until it is written: 512 slots and passes take 1.5 MB as probs, 9 MB as top5.
    """

    def __init__(
        self, model: Model, plan: Plan, *, plan_name: str, seed: int = 0, detail: Detail = "probs"
    ) -> None:
        if detail not in DETAILS:
            raise ConfigError(f"trace detail {detail!r} is unknown; use one of {', '.join(DETAILS)}.")
        self.model, self.plan, self.detail = model, plan, detail
        self.about = {"plan_name": plan_name, "seed": seed, "plan": plain(plan)}
        self.passes: dict[int, list[Pass]] = {}
        self.traces: list[Trace] = []

    def observe(self, canvas: Canvas) -> Tensor:
        """The slots whose logits the record needs besides those the decoder asks for."""
        return canvas.slots if self.detail != "commits" else torch.zeros_like(canvas.slots)

    def __call__(self, step: Step, *, seconds: float | None = None) -> None:
        """Take one step; `seconds` since the start, for the rows that end with it."""
        for row, key in enumerate(step.before.canvas.key.tolist()):
            seen = self.passes.setdefault(key, [])
            seen.append(self._pass(step, row, len(seen)))
        for row in step.finished:
            self.traces.append(self._trace(step, row, seconds))

    def write(self, path: Path | str) -> None:
        """Every finished row, in the order of the prompts."""
        write(path, sorted(self.traces, key=lambda trace: trace.row))

    def _pass(self, step: Step, row: int, n: int) -> Pass:
        before, after, roles = step.before, step.after, step.before.canvas.roles
        ids = np.array(after.canvas.answer(row), dtype=np.int64)
        commits = committed(step, row)
        filled = np.array(before.canvas.answer(row), dtype=np.int64)
        filled[[slot for slot, _, _ in commits]] = [token for _, token, _ in commits]
        start, length = int(before.open[row] - before.canvas.prompt[row]), len(filled)
        ends = np.flatnonzero(ids == roles.eos)
        return Pass(
            n=n,
            phase=phase(step, row),
            length=length,
            open=start,
            window=max(0, min(self.plan.block, length - start)),
            commits=commits,
            edits=edits(filled, ids),
            masks=int((ids == roles.mask).sum()),
            first_eos=int(ends[0]) if len(ends) else None,
            signal=self._signal(step, row),
            **self._arrays(step, row),
        )

    def _signal(self, step: Step, row: int) -> dict[str, float | None]:
        """What the length rule read; a rule that watched nothing of this row read nothing."""
        if not self.plan.length.watch(step.before)[row].any():
            return {}
        return {name: float(values[row]) for name, values in step.signal.items()}

    def _arrays(self, step: Step, row: int) -> dict[str, np.ndarray]:
        if self.detail == "commits":
            return {}
        canvas = step.before.canvas
        mine = canvas.slots[step.where] & (step.where.nonzero()[:, 0] == row)
        p = step.logits[mine.to(step.logits.device)].float().softmax(-1)
        best = p.topk(5 if self.detail == "top5" else 1)
        found = {"p_eos": p[:, canvas.roles.eos], "top": best.values[:, 0]}
        if canvas.roles.void is not None:
            found["p_void"] = p[:, canvas.roles.void]
        if self.detail == "top5":
            found |= {"top5_ids": best.indices.flatten(), "top5_p": best.values.flatten()}
        return {name: values.cpu().numpy() for name, values in found.items()}

    def _trace(self, step: Step, row: int, seconds: float | None) -> Trace:
        canvas, outcome = step.before.canvas, step.finished[row]
        prompt = canvas.ids[row, : int(canvas.prompt[row])].tolist()
        result = dataclasses.asdict(self.model.result(outcome, self.plan))
        kept = {field.name: result[field.name] for field in dataclasses.fields(Summary)}
        passes = tuple(self.passes.pop(outcome.key))
        header = Header(
            model=self.model.name,
            family=self.model.family.name,
            roles=canvas.roles,
            prompt=Prompt(str(self.model.tokenizer.decode(prompt)), tuple(prompt)),
            detail=self.detail,
            **self.about,
        )
        summary = Summary(**kept | {"seconds": seconds})
        return Trace(outcome.key, header, passes, summary, self._pieces({*prompt, *outcome.ids}, passes))

    def _pieces(self, ids: set[int], passes: tuple[Pass, ...]) -> dict[int, str]:
        """The text of every token the trace names, by itself."""
        for step in passes:
            ids |= {token for _, token, _ in step.commits}
            ids |= {edit.id for edit in step.edits if edit.id is not None}
            ids |= set() if step.top5_ids is None else set(step.top5_ids.tolist())
        return {token: str(self.model.tokenizer.decode([token])) for token in sorted(ids)}


def phase(step: Step, row: int) -> Any:
    if not step.before.probing[row]:
        return "decode"
    return "shared" if step.after.shared[row] > step.before.shared[row] else "probe"


def committed(step: Step, row: int) -> tuple[tuple[int, int, float], ...]:
    start = int(step.before.canvas.prompt[row])
    places = step.chosen[row].nonzero()[:, 0].tolist()
    return tuple((at - start, int(step.tokens[row, at]), float(step.score[row, at])) for at in places)


def edits(before: np.ndarray, after: np.ndarray) -> tuple[Edit, ...]:
    """Edits that lead from one canvas to the other: a growth inside it, or a new tail."""
    shared = min(len(before), len(after))
    differ = np.flatnonzero(before[:shared] != after[:shared])
    same = int(differ[0]) if len(differ) else shared
    if len(differ):
        count = len(next(runs(after[same:]))[1])
        kept = len(after) - same - count
        if np.array_equal(before[same : same + kept], after[same + count :]):
            grown = Edit("insert", same, count, int(after[same]))
            return (grown, *cut(len(after), len(before) + count))
    return (*cut(same, len(before)), *appended(after, same))


def cut(at: int, length: int) -> tuple[Edit, ...]:
    return (Edit("cut", at, length - at),) if at < length else ()


def runs(ids: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    return ((token, list(run)) for token, run in groupby(ids.tolist()))


def appended(canvas: np.ndarray, start: int) -> tuple[Edit, ...]:
    made: list[Edit] = []
    for token, run in runs(canvas[start:]):
        made.append(Edit("append", start, len(run), token))
        start += len(run)
    return tuple(made)


def plain(value: Any) -> Any:
    """A plan as JSON values: rules by name with their settings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"rule": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.__name__ if callable(value) else str(value)
