"""What an engine reports while it decodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from voidpad.decode.loop import Step
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan


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

    @cached_property
    def handles(self) -> list[int]:
        """The handle of each row of `step.before` and `step.after`."""
        return self.step.before.canvas.handle.tolist()

    @cached_property
    def final_prefix(self) -> list[int]:
        """For each row, how many leading canvas slots of `step.after` can no longer change.

        The length rule says it. A rule that declares nothing promises nothing: 0 until the row ends.
        """
        declared = getattr(self.plan.length, "final_prefix", None)
        if declared is None:
            return [0] * len(self.step.after)
        final: list[int] = declared(self.step.after).tolist()
        return final


@dataclass(frozen=True)
class Finished:
    """A row ended: by its rules, its deadline, or because somebody ended it."""

    handle: int
    outcome: Outcome


@dataclass(frozen=True)
class Failed:
    """A pass failed, and with it the rows that took part. They have no outcome; the engine goes on."""

    handles: tuple[int, ...]
    error: Exception


Event = Started | Wrote | Finished | Failed
