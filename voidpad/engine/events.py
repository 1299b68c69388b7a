"""What an engine reports while it decodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from voidpad.decode.loop import Step
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows


def final_prefix(plan: Plan, rows: Rows) -> list[int]:
    """For each row, how many leading canvas slots can no longer change.

    The length rule says it. A rule that declares nothing promises nothing: 0 until the row ends.
    """
    declared = getattr(plan.length, "final_prefix", None)
    if declared is None:
        return [0] * len(rows)
    final: list[int] = declared(rows).tolist()
    return final


@dataclass(frozen=True)
class Advanced:
    """Rows of one plan after a captured pass (`captured.py`). Its `Step` is made if somebody asks for it."""

    before: Rows
    after: Rows
    finished: dict[int, Outcome]
    make_step: Callable[[], Step]  # from the pass's logits, which the next pass overwrites

    @property
    def live(self) -> Rows:
        """The rows that take part in the next pass."""
        if not self.finished:
            return self.after
        keep = torch.ones(len(self.after), dtype=torch.bool)
        keep[list(self.finished)] = False
        return self.after.select(keep)


@dataclass(frozen=True)
class Started:
    """A row left the queue and takes part in passes from now on."""

    handle: int


@dataclass(frozen=True, eq=False)
class Wrote:
    """One pass over the rows that share a plan. Rows of other plans in the same pass have an event of their own.

    `step.logits` may be overwritten by the next pass: read what is needed at once.
    """

    plan: Plan
    after: Rows  # every row of the pass, finished ones included
    make_step: Callable[[], Step]

    @cached_property
    def step(self) -> Step:
        """What the pass did. It is made when it is first asked for, which must be before the next pass."""
        return self.make_step()

    @cached_property
    def handles(self) -> list[int]:
        """The handle of each row of `after`."""
        return self.after.canvas.handle.tolist()

    @cached_property
    def final_prefix(self) -> list[int]:
        """For each row, how many leading canvas slots can no longer change."""
        return final_prefix(self.plan, self.after)


@dataclass(frozen=True)
class Finished:
    """A row ended: by its rules, its deadline, or because somebody ended it."""

    handle: int
    outcome: Outcome


@dataclass(frozen=True)
class Failed:
    """Rows ended with an error, in most cases one row. They have no outcome; the engine goes on with the others."""

    handles: tuple[int, ...]
    error: Exception


Event = Started | Wrote | Finished | Failed
