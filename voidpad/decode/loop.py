"""The decoding loop. Read this first.

In every pass the loop finds the frontier (the masked slots of each row's open block), computes the logits that the
proposal and the length rule need, proposes tokens, chooses which of them to commit and writes these. Then the length
rule may edit the canvas, and the stop rule may end rows. Each row has its own position and counters, so prompts and
canvases of different lengths and rows that end early need no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from voidpad.constrain import ConstraintError
from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.decode.canvas import Canvas, CanvasEdit, EditKind, send
from voidpad.decode.commit import Proposed
from voidpad.decode.constrained import (
    check_constrained,
    check_gaps,
    check_length,
    places_of,
    propose_constrained,
)
from voidpad.decode.length import LengthReading, Signal
from voidpad.decode.noise import Noise
from voidpad.decode.outcome import ConstraintReport, Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.propose import NOTHING, Bans, Sampler
from voidpad.decode.rows import Rows
from voidpad.decode.rules import name_of
from voidpad.decode.stop import terminated
from voidpad.errors import ConfigError, PlanError, VoidpadError
from voidpad.roles import Roles

Denoiser = Callable[[Canvas, Tensor], Tensor]  # (canvas, where (B, L) bool) -> aligned logits (N, V)
Observe = Callable[[Canvas], Tensor]  # -> (B, L) bool, further slots whose logits the caller wants to see


@dataclass(frozen=True)
class Step:
    """One forward pass over the live rows. `logits` is large: use it during the step, do not keep it."""

    before: Rows  # with the size of a block that was entered in this pass
    where: Tensor  # (B, L) the slots whose logits were computed
    logits: Tensor  # (N, V) at `where`
    frontier: Tensor  # (B, L) slots that could be written
    chosen: Tensor  # (B, L) slots that were written
    tokens: Tensor  # (B, L) proposed tokens on the frontier
    score: Tensor  # (B, L) their scores
    signal: Signal  # what the length rule read: name -> (B,)
    after: Rows  # every row of `before`, finished ones included
    finished: dict[int, Outcome]  # by row index of `before`
    edits: tuple[CanvasEdit, ...] = ()  # how lengths changed after the tokens were written, in this order

    def written(self, row: int) -> list[tuple[int, int, float]]:
        """Slot, token and score of every token that this pass wrote in one row, from left to right."""
        start = int(self.before.canvas.prompt[row])
        columns = self.chosen[row].nonzero()[:, 0].tolist()
        return [(at - start, int(self.tokens[row, at]), float(self.score[row, at])) for at in columns]

    def edits_of(self, row: int) -> list[tuple[EditKind, int, int, int | None]]:
        """Kind, slot, number of slots and token of every change of one row's length, in the order of the changes."""
        start = int(self.before.canvas.prompt[row])
        found = [(edit.kind, int(edit.at[row]), int(edit.count[row]), edit.token) for edit in self.edits]
        return [(kind, at - start, count, token) for kind, at, count, token in found if count]

    @property
    def live(self) -> Rows:
        """The rows that take part in the next pass."""
        if not self.finished:
            return self.after
        keep = torch.ones(len(self.after), dtype=torch.bool)
        keep[list(self.finished)] = False
        return self.after.select(keep)


def decode(
    denoise: Denoiser,
    prompts: Sequence[Sequence[int]],
    roles: Roles,
    plan: Plan,
    *,
    seed: int = 0,
    keys: Sequence[int] | None = None,
    observe: Observe | None = None,
    constraints: Sequence[RowConstraint | GapConstraints | None] | None = None,
) -> Iterator[Step]:
    """Decode all prompts side by side; yields one Step per forward pass.

    `keys` identify the rows in outcomes and, with the seed, decide their random draws; 0, 1, 2, ... by default.
    `constraints` say what the rows' texts must match.
    """
    keys = range(len(prompts)) if keys is None else keys
    rows = begin(prompts, roles, plan, keys=keys, seeds=[seed] * len(prompts), constraints=constraints)
    while len(rows):
        where = wanted(rows, plan)
        if observe is not None:
            where = where | observe(rows.canvas)
        step = advance(rows, plan, where, denoise(rows.canvas, where))
        yield step
        rows = step.live


def begin(
    prompts: Sequence[Sequence[int]],
    roles: Roles,
    plan: Plan,
    *,
    keys: Sequence[int],
    seeds: Sequence[int],
    limits: Sequence[int | None] | None = None,
    handles: Sequence[int] | None = None,
    constraints: Sequence[RowConstraint | GapConstraints | None] | None = None,
) -> Rows:
    """The rows before their first pass: each prompt followed by a canvas of masks.

    With `plan.fill` a prompt is a template, and the masks in it are the slots. A row's canvas is bounded by the smaller
    of its own limit and the plan's. `keys` and `seeds` decide a row's random draws; `handles` identify rows to caches
    and callers (the keys by default). `constraints` say what the rows' texts must match; the canvas of such a row is
    long enough for its shortest text, if its limit allows that.
    """
    for prompt in prompts:
        check(prompt, roles, plan)
    longest = plan.limit
    bounds = [longest if limit is None else min(limit, longest) for limit in limits or [None] * len(prompts)]
    limit, size = (torch.tensor(n, dtype=torch.long) for n in (bounds, [len(prompt) for prompt in prompts]))
    held = tuple(constraints or ())
    held = held if any(own is not None for own in held) else ()
    if held:
        check_constrained(plan, roles)
    if plan.fill:
        canvas = Canvas.with_gaps(prompts, roles, keys, handles)
        limit, start = canvas.length, canvas.prompt
        for row, own in enumerate(held):
            if own is not None:
                check_gaps(own, [len(gap) for gap in _gaps(canvas, row)])
    else:
        slots = plan.whole_blocks(size, limit.clamp(max=plan.length.canvas))
        limit, start = plan.whole_blocks(size, limit), plan.first_block(size)
        for row, own in enumerate(held):
            if own is not None:
                if not isinstance(own, RowConstraint):
                    raise ConstraintError(
                        "constraints of gaps need a template; use a plan that fills one.", "gaps"
                    )
                check_length(own, int(limit[row]))
                least = -(-own.shortest // plan.block) * plan.block
                slots[row] = max(int(slots[row]), min(least, int(limit[row])))
        canvas = Canvas.blank(prompts, slots, roles, keys, handles)
    return Rows.begin(
        canvas,
        plan.block,
        open=start,
        seeds=seeds,
        limit=limit,
        probing=plan.length.probes,
        constraints=held,
    )


def check(prompt: Sequence[int], roles: Roles, plan: Plan) -> None:
    """Refuse an empty prompt, a prompt that holds MASK, and a plan that names roles the model does not have."""
    if not len(prompt):
        raise ConfigError("the prompt is empty; give it at least one token.")
    if plan.fill:
        if roles.mask not in prompt or prompt[0] == roles.mask:
            raise ConfigError("the template needs a gap, and at least one token before the first one.")
    elif roles.mask in prompt:
        raise ConfigError(f"the prompt holds the mask token {roles.mask}; remove it.")
    roles.ids(plan.names)


def wanted(rows: Rows, plan: Plan) -> Tensor:
    """The slots (B, L) whose logits the next pass needs.

    A probing row also requests its first block, because the final probe doubles as the first decoding pass.
    """
    return plan.frontier(rows) | plan.length.watch(rows)


def advance(rows: Rows, plan: Plan, where: Tensor, logits: Tensor) -> Step:
    """One pass over the rows, given the logits (N, V) at the True slots of `where`."""
    roles = rows.canvas.roles
    bans = resolved_bans(plan, roles, vocab=logits.shape[1])
    watched = plan.length.watch(rows)
    seen = _at(logits, watched[where]) if watched.any() else torch.empty(0, logits.shape[1])
    grid = scatter(watched, plan.length.measure(seen, roles, bans).cpu())
    signal = plan.length.read(rows, grid)
    ready = plan.length.ready(rows, signal)
    frontier = plan.frontier(rows) & ready[:, None]
    proposed = _propose(rows, plan, frontier, _at(logits, frontier[where]), bans)
    tokens, score, frontier = proposed.tokens, proposed.score, proposed.frontier
    chosen = plan.commit(proposed, rows.progress(frontier, plan.steps, plan.block))
    if (chosen & (tokens == NOTHING)).any():
        if (chosen & ~frontier).any():
            raise VoidpadError(f"commit={name_of(plan.commit)} chose a slot outside the frontier.")
        raise VoidpadError(f"every token is banned at a chosen slot: ban={plan.ban}. Ban fewer ids.")
    filled = replace(rows, canvas=rows.canvas.fill(chosen, tokens), spent=rows.spent + ready)
    reading = LengthReading(grid, signal, frontier, chosen)
    revised = plan.length.revise(rows, filled, reading, plan.block)
    if (revised.canvas.length > torch.maximum(rows.limit, rows.canvas.length)).any():
        raise VoidpadError(f"length={name_of(plan.length)} grew a canvas past its limit of {plan.limit}.")
    if plan.trim:  # an approximation: the slots after the leftmost EOS were context for those before it
        canvas = revised.canvas
        revised = replace(revised, canvas=canvas.resize(torch.minimum(canvas.stop, canvas.first_eos + 1)))
    edits = revised.canvas.edits
    revised = replace(revised, canvas=replace(revised.canvas, edits=()))
    after = _count(rows, revised, ready, wrote=chosen & (tokens != roles.mask))
    if plan.leaves_blocks:
        after = after.leave_spent(plan.block, plan.steps)
    finished = _finish(after, plan, ready)
    return Step(rows, where, logits, frontier, chosen, tokens, score, signal, after, finished, edits)


def resolved_bans(plan: Plan, roles: Roles, *, vocab: int) -> Bans:
    """The plan's banned and muted roles as token ids; refuses ids outside the vocabulary."""
    bans = Bans(roles.ids([*plan.ban, *roles.never]), roles.ids(plan.mute), roles.mask)
    outside = [token for token in (*bans.ban, *bans.mute) if not 0 <= token < vocab]
    if outside:
        raise PlanError(f"ban or mute holds {outside[0]}; the vocabulary ends at {vocab - 1}.", field="ban")
    return bans


def _propose(rows: Rows, plan: Plan, frontier: Tensor, logits: Tensor, bans: Bans) -> Proposed:
    """What the plan proposes on the frontier (B, L), from the logits (N, V) of its N slots.

    Runs in tiles whose float64 logits take at most 256 MB; the tensors of the result are on the host. Outside the
    frontier tokens are NOTHING, scores minus infinity and entropies infinite. The slots of a row with a constraint are
    proposed together; those after the end of its text leave the frontier.
    """
    row, column = frontier.nonzero(as_tuple=True)
    entropy, roles = plan.commit.reads_entropy, rows.canvas.roles
    if not len(row):
        nowhere = torch.full(frontier.shape, -torch.inf).double()
        tokens = torch.full_like(rows.canvas.ids, NOTHING)
        return Proposed(tokens, nowhere, -nowhere if entropy else None, frontier)
    slot = column - rows.canvas.prompt[row]
    draw = (rows.seed[row], rows.canvas.key[row], rows.decoded[row], slot)
    noise = Noise(draw, logits.device, greedy=plan.greedy(column))
    penalty = None
    if plan.penalty is not None:
        masked = rows.canvas.masked.sum(1).double() / rows.canvas.length.clamp(min=1)
        penalty = send(plan.penalty(masked)[row], logits.device)
    values = torch.empty(3 if entropy else 2, len(row), dtype=torch.float64)  # tokens, scores and entropies
    free = torch.ones(len(row), dtype=torch.bool)
    for number, held in enumerate(rows.constraints):
        if held is None:
            continue
        assert isinstance(plan.propose, Sampler)  # `check_constrained` refuses others
        limit = int(rows.limit[number]) if plan.length.appends else 0
        for own, place, columns in places_of(held, rows.canvas, number, frontier, limit=limit):
            part = (row == number) & columns[column]
            if not part.any():
                continue
            free &= ~part
            z = _penalised(_at(logits, part), roles.eos, None if penalty is None else _at(penalty, part))
            found = propose_constrained(
                plan.propose, own, place, z, bans, noise.select(part), entropy=entropy
            )
            values[:, part] = found.stacked().cpu()
    if free.any():
        size = max(1, (1 << 25) // logits.shape[1])
        parts = []
        for tile in free.nonzero()[:, 0].split(size):
            some = torch.zeros_like(free).index_fill(0, tile, True)
            z = _penalised(_at(logits, some), roles.eos, None if penalty is None else _at(penalty, some))
            parts.append(plan.propose(z, bans, noise.select(some), entropy=entropy).stacked())
        values[:, free] = torch.cat(parts, 1).cpu()  # one copy, one wait
    tokens = scatter(frontier, values[0].long(), NOTHING)
    return Proposed(
        tokens,
        scatter(frontier, values[1], -torch.inf),
        scatter(frontier, values[2], torch.inf) if entropy else None,
        frontier & (tokens != NOTHING) if rows.constraints else frontier,
    )


def _penalised(logits: Tensor, eos: int, penalty: Tensor | None) -> Tensor:
    """The logits (N, V) with the penalty (N,) taken off the end token's."""
    if penalty is None:
        return logits
    z = logits.double().clone()
    z[:, eos] -= penalty
    return z


def _count(before: Rows, rows: Rows, ready: Tensor, *, wrote: Tensor) -> Rows:
    """The rows with their counters advanced by one pass."""
    same = ~wrote.any(1) & (before.canvas.stop == rows.canvas.stop)  # nothing written, length unchanged
    return replace(
        rows,
        decoded=rows.decoded + ready,
        probed=rows.probed + before.probing,
        shared=rows.shared + (before.probing & ready),
        still=torch.where(same & ready, rows.still + 1, 0),
    )


def _finish(rows: Rows, plan: Plan, ready: Tensor) -> dict[int, Outcome]:
    """The outcomes of the rows that end with this pass, by row index."""
    # A row is over when its last block is written, or when `patience` passes in a row have changed nothing.
    over = (rows.open >= rows.canvas.stop) | (rows.still >= plan.patience)
    ended, spent = plan.stop(rows.canvas), rows.decoded >= plan.length.most_passes()
    if rows.constraints:  # nothing after the end of such a text means anything
        held = torch.tensor([own is not None for own in rows.constraints])
        ended = ended | (held & terminated(rows.canvas, (rows.canvas.roles.eos,)))
    if not (ready & (ended | over | spent)).any():
        return {}
    done: list[tuple[str, Tensor]] = [  # the first that holds is the reason
        ("eos", ended & terminated(rows.canvas, plan.ends(rows.canvas.roles))),
        ("rule", ended),  # only a stop rule of the user's own ends a row without an EOS
        ("full", over & ~rows.canvas.masked.any(1)),
        ("limit", (rows.open >= rows.canvas.stop) & plan.leaves_blocks),  # masks were left behind
        ("stalled", over),
        ("limit", spent),
    ]
    reasons: dict[int, str] = {}
    for reason, mask in reversed(done):
        reasons |= dict.fromkeys((mask & ready).nonzero()[:, 0].tolist(), reason)
    return {row: outcome(rows, row, plan, reasons[row]) for row in sorted(reasons)}


def outcome(rows: Rows, row: int, plan: Plan, reason: str) -> Outcome:
    """The record of one row that ended for this reason."""
    ids = rows.canvas.answer(row)
    ends = plan.ends(rows.canvas.roles) if plan.cut or reason == "eos" else ()
    tokens = ids[: next((place for place, token in enumerate(ids, 1) if token in ends), len(ids))]
    if reason == "rule" and rows.canvas.roles.mask in tokens:  # what is left of the first mask is the answer
        tokens = tokens[: tokens.index(rows.canvas.roles.mask)]
    return Outcome(
        key=int(rows.canvas.key[row]),
        ids=ids,
        tokens=tokens,
        passes_decode=int(rows.decoded[row]),
        passes_probe=int(rows.probed[row]),
        passes_shared=int(rows.shared[row]),
        stop_reason=reason,
        gaps=_gaps(rows.canvas, row),
        constraint=_report(rows, row, tokens),
    )


def _gaps(canvas: Canvas, row: int) -> tuple[tuple[int, ...], ...]:
    """The tokens of each gap of a row; none if its prompt was no template."""
    if canvas.gaps is None:
        return ()
    found: list[tuple[int, ...]] = []
    pairs = zip(canvas.slots[row].tolist(), canvas.ids[row].tolist(), strict=True)
    for is_slot, run in groupby(pairs, key=lambda pair: pair[0]):
        if is_slot:
            found.append(tuple(token for _, token in run))
    return tuple(found)


def _report(rows: Rows, row: int, tokens: Sequence[int]) -> ConstraintReport | None:
    """What became of a row's constraint; None for rows without one."""
    held = rows.constraints[row] if rows.constraints else None
    if held is None:
        return None
    ends, longest = rows.canvas.roles.ends, int(rows.limit[row])
    if isinstance(held, RowConstraint):
        return ConstraintReport(
            matched=held.accepts(tokens, ends), states=held.automaton.states, longest=longest
        )
    pairs = [
        (own, gap) for own, gap in zip(held.gaps, _gaps(rows.canvas, row), strict=True) if own is not None
    ]
    matched = all(own.accepts(gap, ()) for own, gap in pairs)
    return ConstraintReport(
        matched=matched, states=sum(own.automaton.states for own, _ in pairs), longest=longest
    )


def _at(logits: Tensor, wanted: Tensor) -> Tensor:
    """The rows of `logits` (N, V) where `wanted` (N,) is True; indices come from the host, so a GPU need not wait."""
    return logits if wanted.all() else logits[send(wanted.nonzero()[:, 0], logits.device)]


def scatter(where: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    """A tensor (B, L, ...) with `values` (N, ...) at the True slots of `where` (B, L) and `empty` elsewhere."""
    grid = torch.full((*where.shape, *values.shape[1:]), empty, dtype=values.dtype)
    grid[where] = values
    return grid
