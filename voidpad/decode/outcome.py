"""The record of a finished row. Every part of voidpad that reports on a row adds to this record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ConstraintReport:
    """What became of a row's constraint."""

    matched: bool  # whether the answer matches; a row that was ended from outside may not
    states: int  # of the automaton
    longest: int  # the longest canvas that the row could have had


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One finished row: its canvas, its answer, and the forward passes that it took part in."""

    key: int  # the row's draw key; `generate` uses the prompt's place among those given
    ids: list[int]  # the whole final canvas
    tokens: list[int]  # the answer: up to and including the first EOS, unless the plan keeps all slots
    passes_decode: int
    passes_probe: int = 0
    passes_shared: int = 0  # probes that also served as decoding passes
    stop_reason: str  # eos, full, limit or stalled; stop, cancelled or deadline for rows ended from outside
    gaps: tuple[tuple[int, ...], ...] = ()  # of a row that filled a template: the tokens of each gap
    seconds: float = 0.0  # from the row's admission to its end, without the time in the queue
    constraint: ConstraintReport | None = None  # None for rows without a constraint

    @property
    def canvas(self) -> int:
        """The final length of the canvas."""
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """A finished row with its text and the approximations that were on."""

    text: str
    approximations: tuple[str, ...] = ()
