"""Recording: events of an engine in, traces out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from voidpad.decode.loop import Step
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows
from voidpad.diagnose.trace.format import DETAILS, Detail, Edit, Header, Pass, Phase, Prompt, Trace, write
from voidpad.engine.events import Event, Finished, Wrote
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.models import Model


class Recorder:
    """A listener for an engine's events that makes a trace of every row that ends.

    Give it to `Model.generate` or `Model.stream` as `listen`, and its `observe` as `observe`. A trace stays in memory
    until it is written: 512 slots and passes take 1.5 MB as probs, 9 MB as top5.

    Observing must not change an answer. A cache recomputes no more than the block, so under a cache the recorder asks
    for no logits of its own: the trace holds those that decoding needed, and its header says `recorded: block`.
    """

    def __init__(
        self,
        model: Model,
        *,
        plan_name: str,
        seed: int = 0,
        detail: Detail = "probs",
        cache: str | None = None,
    ) -> None:
        if detail not in DETAILS:
            raise ConfigError(f"trace detail {detail!r} is unknown; use one of {', '.join(DETAILS)}.")
        self.model, self.detail, self.cache = model, detail, cache
        self.about: dict[str, Any] = {
            "plan_name": plan_name,
            "seed": seed,
            "recorded": "block" if cache else "canvas",
        }
        self.rows: dict[int, _Recorded] = {}  # by handle
        self.traces: list[Trace] = []

    def observe(self, canvas: Rows) -> Tensor:
        """The slots whose logits the record needs besides those that decoding needs."""
        if self.detail == "commits" or self.cache:
            return torch.zeros_like(canvas.slots)
        return canvas.slots

    def __call__(self, event: Event) -> None:
        if isinstance(event, Wrote):
            canvas = event.step.before
            for row, handle in enumerate(event.handles):
                if handle not in self.rows:
                    self.rows[handle] = _Recorded(event.plan, self.header_of(event.plan, canvas, row))
                passes = self.rows[handle].passes
                passes.append(self.pass_of(event.plan, event.step, row, len(passes)))
        elif isinstance(event, Finished) and event.handle in self.rows:
            self.traces.append(self._trace(self.rows.pop(event.handle), event.outcome))

    def write(self, path: Path | str) -> None:
        """Every finished row, in the order of the prompts."""
        write(path, sorted(self.traces, key=lambda trace: trace.row))

    def pass_of(self, plan: Plan, step: Step, row: int, n: int) -> Pass:
        """What one row did in its pass number `n`."""
        before, roles = step.before, step.before.roles
        ids = np.array(step.after.answer(row), dtype=np.int64)
        start, length = int(before.block_start[row] - before.prompt[row]), len(before.answer(row))
        phase: Phase = "decode"
        if before.probing[row]:
            phase = "shared" if step.after.shared[row] > before.shared[row] else "probe"
        # A rule that watched no slot of this row read nothing.
        read = step.signal if plan.length.watch(before)[row].any() else {}
        ends = np.flatnonzero(ids == roles.eos)
        return Pass(
            n=n,
            phase=phase,
            length=length,
            open=start,
            window=max(0, min(plan.block, length - start)),
            commits=tuple(step.written(row)),
            forced=step.forced(row),
            edits=tuple(Edit(*edit) for edit in step.edits_of(row)),
            masks=int((ids == roles.mask).sum()),
            first_eos=int(ends[0]) if len(ends) else None,
            signal={name: float(values[row]) for name, values in read.items()},
            **self._arrays(step, row),
        )

    def _arrays(self, step: Step, row: int) -> dict[str, np.ndarray]:
        if self.detail == "commits":
            return {}
        canvas = step.before
        start, length = int(canvas.prompt[row]), len(canvas.answer(row))
        mine = canvas.slots[step.where] & (step.where.nonzero()[:, 0] == row)
        slots = (step.where[row] & canvas.slots[row]).nonzero()[:, 0] - start
        p = step.logits[mine.to(step.logits.device)].float().softmax(-1)
        best = p.topk(5 if self.detail == "top5" else 1)
        read = {"p_eos": p[:, canvas.roles.eos], "top": best.values[:, 0]}
        if canvas.roles.void is not None:
            read["p_void"] = p[:, canvas.roles.void]
        if self.detail == "top5":
            read |= {"top5_ids": best.indices, "top5_p": best.values}
        arrays: dict[str, np.ndarray] = {}
        for name, values in read.items():
            empty = -1 if name == "top5_ids" else torch.nan
            whole = torch.full((length, *values.shape[1:]), empty, dtype=values.dtype)
            whole[slots] = values.cpu()
            arrays[name] = whole.flatten().numpy()
        return arrays

    def header_of(self, plan: Plan, canvas: Rows, row: int) -> Header:
        """What a row's trace says before its first pass, from the canvas of that pass."""
        prompt = canvas.ids[row, : int(canvas.prompt[row])].tolist()
        return Header(
            model=self.model.name,
            family=self.model.family.name,
            roles=canvas.roles,
            prompt=Prompt(str(self.model.tokenizer.decode(prompt)), tuple(prompt)),
            plan=plan.plain(),
            detail=self.detail,
            template=tuple(canvas.answer(row)) if plan.fill else (),
            **self.about,
        )

    def _trace(self, row: _Recorded, outcome: Outcome) -> Trace:
        passes = tuple(row.passes)
        result = self.model.result(outcome, row.plan, cache=self.cache)
        named = {*row.header.prompt.ids, *row.header.template, *outcome.ids}
        return Trace(outcome.key, row.header, passes, result, self._pieces(named, passes))

    def _pieces(self, ids: set[int], passes: tuple[Pass, ...]) -> dict[int, str]:
        """The text of every token the trace names, by itself."""
        for step in passes:
            ids |= {token for _, token, _ in step.commits}
            ids |= {edit.id for edit in step.edits if edit.id is not None}
            ids |= set() if step.top5_ids is None else set(step.top5_ids.tolist()) - {-1}
        return {token: str(self.model.tokenizer.decode([token])) for token in sorted(ids)}


@dataclass
class _Recorded:
    """A row while it is decoded."""

    plan: Plan
    header: Header
    passes: list[Pass] = field(default_factory=list)
