"""How rows end: the reasons, and the record of a finished row, to which every part that reports on a row adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows
from voidpad.decode.stop import terminated

# Why a row ends, by number. If several hold, `endings` says which one counts; `finish` turns some of "rule" into "eos".
REASONS = ("", "limit", "stalled", "full", "rule")
GOES_ON = 0


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
    slot_passes: int = 0  # canvas slots summed over all passes, whether a cache spared some of them or not
    # eos, rule, full, limit or stalled; stop, cancelled or deadline for rows ended from outside.
    stop_reason: str
    gaps: tuple[tuple[int, ...], ...] = ()  # of a row that filled a template: the tokens of each gap
    seconds: float = 0.0  # from the row's admission to its end, without the time in the queue
    constraint: ConstraintReport | None = None  # None for rows without a constraint

    @property
    def canvas(self) -> int:
        """The final length of the canvas."""
        return len(self.ids)

    @property
    def passes(self) -> int:
        """All forward passes, probes included."""
        return self.passes_decode + self.passes_probe - self.passes_shared


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """A finished row with its text and the approximations that were on."""

    text: str
    approximations: tuple[str, ...] = ()


def endings(rows: Rows, plan: Plan, ready: Tensor) -> Tensor:
    """Why each row (B,) ends with this pass, as a number of `REASONS`; GOES_ON for rows that do not."""
    at_end, full = rows.block_start >= rows.stop, ~rows.masked.any(1)
    over = at_end | (rows.idle_passes >= plan.patience)
    ended = plan.stop(rows)
    if rows.constraints:  # nothing after the end of such a text means anything
        held = torch.tensor([own is not None for own in rows.constraints])
        ended = ended | (held & terminated(rows, (rows.roles.eos,)))
    reason = (rows.decoded >= plan.length.most_passes()).long() * REASONS.index("limit")
    reason = torch.where(over, REASONS.index("stalled"), reason)
    if plan.leaves_blocks:
        reason = torch.where(at_end, REASONS.index("limit"), reason)  # masks were left behind
    reason = torch.where(over & full, REASONS.index("full"), reason)
    reason = torch.where(ended, REASONS.index("rule"), reason)
    return torch.where(ready, reason, GOES_ON)


def finish(rows: Rows, plan: Plan, reasons: Tensor) -> dict[int, Outcome]:
    """The outcomes of the rows that end for these reasons (B,), by row index."""
    if not reasons.any():
        return {}
    by_eos = (reasons == REASONS.index("rule")) & terminated(rows, plan.ends(rows.roles))
    named = {row: REASONS[number] for row, number in enumerate(reasons.tolist()) if number != GOES_ON}
    named |= dict.fromkeys(by_eos.nonzero()[:, 0].tolist(), "eos")
    return {row: outcome(rows, row, plan, reason) for row, reason in named.items()}


def outcome(rows: Rows, row: int, plan: Plan, reason: str) -> Outcome:
    """The record of one row that ended for this reason."""
    ids = rows.answer(row)
    ends = plan.ends(rows.roles) if plan.cut or reason == "eos" else ()
    tokens = ids[: next((place for place, token in enumerate(ids, 1) if token in ends), len(ids))]
    if reason == "rule" and rows.roles.mask in tokens:  # the answer is what stands before the first mask
        tokens = tokens[: tokens.index(rows.roles.mask)]
    gaps = gaps_of(rows, row) if plan.fill else ()
    return Outcome(
        key=int(rows.key[row]),
        ids=ids,
        tokens=tokens,
        passes_decode=int(rows.decoded[row]),
        passes_probe=int(rows.probed[row]),
        passes_shared=int(rows.shared[row]),
        slot_passes=int(rows.slot_passes[row]),
        stop_reason=reason,
        gaps=gaps,
        constraint=_report(rows, row, tokens, gaps),
    )


def gaps_of(rows: Rows, row: int) -> tuple[tuple[int, ...], ...]:
    """The tokens of each run of slots of a row."""
    pairs = zip(rows.slots[row].tolist(), rows.ids[row].tolist(), strict=True)
    runs = groupby(pairs, key=lambda pair: pair[0])
    return tuple(tuple(token for _, token in run) for is_slot, run in runs if is_slot)


def _report(
    rows: Rows, row: int, tokens: Sequence[int], gaps: Sequence[Sequence[int]]
) -> ConstraintReport | None:
    """What became of a row's constraint; None for rows without one."""
    held = rows.constraints[row] if rows.constraints else None
    if held is None:
        return None
    pairs = [(own, text) for own, text in zip(held.gaps, gaps or [tokens], strict=True) if own is not None]
    matched = all(own.accepts(text, rows.roles.ends) for own, text in pairs)
    states = sum(own.automaton.states for own, _ in pairs)
    return ConstraintReport(matched=matched, states=states, longest=int(rows.limit[row]))
