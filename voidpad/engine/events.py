"""What an engine reports while it decodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from voidpad.decode.loop import Step
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows


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
    step: Step

    @property
    def after(self) -> Rows:
        """Every row of the pass, finished ones included."""
        return self.step.after

    @cached_property
    def handles(self) -> list[int]:
        """The handle of each row."""
        return self.after.handle.tolist()

    @cached_property
    def final_prefix(self) -> list[int]:
        """For each row, how many leading canvas slots can no longer change."""
        final: list[int] = self.plan.final_prefix(self.after).tolist()
        return final


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
