"""The decoding loop. Read this first.

A row is a prompt and, right of it, a canvas of slots, which hold MASK until a token is committed (written). Slots are
committed block by block: each row has one open block, and the masked slots in it are the row's frontier.

In every pass the loop computes the logits that the proposal and the length rule need, proposes a token for each slot of
the frontier, chooses which of them to commit and writes these. Then the length rule may edit the canvas, the open block
moves on past full ones, and the stop rule may end rows. A probe is a pass of a row that only reads, to find a length
for its canvas. Each row has its own position and counters, so prompts and canvases of different lengths and rows that
end early need no special case.

Tensors are (B, L) over whole rows, and (B, W) over windows, the W slots of each row's open block: most rules see
windows. Logits are (N, V), for the N slots that are True in a mask (B, L), row by row and from left to right. What
happens after the proposals is one function, `take_step`. The loop here calls it on the host, the captured pass
(`voidpad.engine.captured`) on the device. "Spec 2.1" means that section of spec/algorithms.md, as spec/README.md says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.decode.commit import BlockProgress, Editing, Proposed
from voidpad.decode.constrained import check_constrained, check_gaps, propose_by_constraint, shortest_canvas
from voidpad.decode.length import LengthReading, Signal
from voidpad.decode.noise import Noise
from voidpad.decode.outcome import Outcome, endings, finish, gaps_of
from voidpad.decode.plan import Plan
from voidpad.decode.propose import NOTHING, Bans, propose_in_tiles
from voidpad.decode.rows import CanvasEdit, Constraints, EditKind, Rows, send
from voidpad.decode.rules import name_of
from voidpad.errors import ConfigError, PlanError, VoidpadError
from voidpad.roles import Roles

Denoiser = Callable[[Rows, Tensor], Tensor]  # (rows, where (B, L) bool) -> aligned logits (N, V)
Observe = Callable[[Rows], Tensor]  # -> (B, L) bool, further slots whose logits the caller wants to see
CPU = torch.device("cpu")


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
    for prompt, own in zip(prompts, constraints or [None] * len(prompts), strict=True):
        check(prompt, roles, plan, own)
    keys = range(len(prompts)) if keys is None else keys
    rows = begin(prompts, roles, plan, keys=keys, seeds=[seed] * len(prompts), constraints=constraints)
    while len(rows):
        where = wanted(rows, plan)
        if observe is not None:
            where = where | observe(rows)
        step = advance(rows, plan, where, denoise(rows, where))
        yield step
        rows = step.live


def check(
    prompt: Sequence[int], roles: Roles, plan: Plan, constraint: RowConstraint | GapConstraints | None = None
) -> None:
    """Refuse a prompt that does not suit the plan, roles that the model does not have, and a plan that cannot be had
    beside a constraint. With `plan.fill` the prompt is a template and must hold MASK; else it must not."""
    if not len(prompt):
        raise ConfigError("the prompt is empty; give it at least one token.")
    if plan.fill:
        if roles.mask not in prompt or prompt[0] == roles.mask:
            raise ConfigError("the template needs a gap, and at least one token before the first one.")
    elif roles.mask in prompt:
        raise ConfigError(f"the prompt holds the mask token {roles.mask}; remove it.")
    roles.ids([*plan.ban, *plan.mute])
    if constraint is not None:
        check_constrained(plan, roles)


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
    """The rows before their first pass: each prompt, which has been checked, followed by a canvas of masks.

    With `plan.fill` a prompt is a template, and the masks in it are the slots. A row's canvas is bounded by the smaller
    of its own limit and the plan's. `keys` and `seeds` decide a row's random draws; `handles` identify rows to caches
    and callers (the keys by default). `constraints` say what the rows' texts must match; the canvas of such a row is
    long enough for its shortest text, if its limit allows that.
    """
    given = tuple(constraints or ())
    if all(own is None for own in given):
        given = ()  # how `Rows` says that no row has one
    numbers = {"key": keys, "seed": seeds, "handle": keys if handles is None else handles}
    known = {name: torch.tensor(values, dtype=torch.long) for name, values in numbers.items()}
    if plan.fill:
        rows = Rows.with_gaps(prompts, roles, constraints=given, **known)
        rows = replace(rows, limit=rows.length)
        for row, own in enumerate(given):
            if own is not None:
                check_gaps(own, [len(gap) for gap in gaps_of(rows, row)])
    else:
        prompt_length = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.long)
        length, limit = _canvas_lengths(plan, prompt_length, limits or [None] * len(prompts), given)
        start = plan.first_block(prompt_length)
        rows = Rows.blank(prompts, length, roles, limit=limit, block_start=start, constraints=given, **known)
    probing = torch.full_like(rows.probing, plan.length.probes)
    return replace(rows, entry_masks=rows.open_masks(plan.block).sum(1), probing=probing)


def _canvas_lengths(
    plan: Plan, prompt_length: Tensor, limits: Sequence[int | None], constraints: Constraints
) -> tuple[Tensor, Tensor]:
    """The length (B,) that each row's canvas has at first, and the one up to which it may grow."""
    longest = [plan.limit if limit is None else min(limit, plan.limit) for limit in limits]
    limit = torch.tensor(longest, dtype=torch.long)
    length = plan.whole_blocks(prompt_length, limit.clamp(max=plan.length.canvas))
    limit = plan.whole_blocks(prompt_length, limit)
    for row, own in enumerate(constraints):
        if own is not None:
            length[row] = max(int(length[row]), shortest_canvas(own, int(limit[row]), plan.block))
    return length, limit


def wanted(rows: Rows, plan: Plan) -> Tensor:
    """The slots (B, L) whose logits the next pass needs: the frontier, and what the length rule watches.

    Probes need the frontier too, because the last one may serve as the first decoding pass.
    """
    return plan.frontier(rows) | plan.length.watch(rows)


# ------------------------------------------------------------------------------------------------- one pass
def advance(rows: Rows, plan: Plan, where: Tensor, logits: Tensor) -> Step:
    """One pass over the rows, given the logits (N, V) at the True slots of `where`.

    (`Rows.advance` is another thing: it moves the open blocks.)
    """
    bans = resolved_bans(plan, rows.roles, vocab=logits.shape[1], device=logits.device)
    reading = _read_lengths(rows, plan, where, logits, bans)
    ready = plan.length.ready(rows, reading.signal)
    frontier = plan.frontier(rows) & ready[:, None]
    # The frontier is part of `where`, and frontier[where] (N,) says which of the logits are its own.
    proposed = _propose(rows, plan, frontier, _select(logits, frontier[where]), bans)
    taken = take_step(rows, plan, proposed, ready, reading)
    if not taken.allowed.all():
        if (taken.chosen & ~proposed.frontier).any():
            raise VoidpadError(f"commit={name_of(plan.commit)} chose a slot outside the frontier.")
        raise VoidpadError(f"every token is banned at a chosen slot: ban={plan.ban}. Ban fewer ids.")
    if (taken.after.length > torch.maximum(rows.limit, rows.length)).any():
        raise VoidpadError(f"length={name_of(plan.length)} grew a canvas past its limit of {plan.limit}.")
    after = replace(taken.after, edits=())
    return Step(
        before=rows,
        after=after,
        proposed=proposed,
        chosen=taken.chosen,
        finished=finish(after, plan, taken.reasons),
        where=where,
        logits=logits,
        signal=reading.signal,
        edits=taken.after.edits,
    )


def resolved_bans(plan: Plan, roles: Roles, *, vocab: int, device: torch.device = CPU) -> Bans:
    """What the plan bans, with `roles.never`, and what it mutes, as masks over a vocabulary; refuses ids outside it."""
    ban, mute = roles.ids([*plan.ban, *roles.never]), roles.ids(plan.mute)
    outside = [token for token in (*ban, *mute) if not 0 <= token < vocab]
    if outside:
        raise PlanError(f"ban or mute holds {outside[0]}; the vocabulary ends at {vocab - 1}.", field="ban")
    return Bans.of(ban, mute, roles.mask, vocab, device)


def _read_lengths(rows: Rows, plan: Plan, where: Tensor, logits: Tensor, bans: Bans) -> LengthReading:
    """What the length rule reads of this pass's logits."""
    watched = plan.length.watch(rows)
    seen = _select(logits, watched[where]) if watched.any() else logits[:0]
    grid = scatter(watched, plan.length.measure(seen, rows.roles, bans).cpu())
    return LengthReading(grid, plan.length.read(rows, grid))


def _propose(rows: Rows, plan: Plan, frontier: Tensor, logits: Tensor, bans: Bans) -> Proposed:
    """What the plan proposes in the windows, from the logits (N, V) of the N slots of the frontier (B, L).

    The slots of a row with a constraint are proposed together; those after the end of its text leave the frontier. The
    tensors of the result are on the host.
    """
    row, column = frontier.nonzero(as_tuple=True)
    entropy = plan.commit.reads_entropy
    parts = (rows.seed[row], rows.key[row], rows.decoded[row], column - rows.prompt[row])
    noise = Noise(parts, logits.device, greedy=plan.leading(column))
    penalty = None
    if plan.penalty is not None:
        masked = rows.masked.sum(1).double() / rows.length.clamp(min=1)
        penalty = send(plan.penalty(masked)[row], logits.device)
    values = torch.empty(3 if entropy else 2, len(row), dtype=torch.float64)  # tokens, scores and entropies
    free = torch.ones(len(row), dtype=torch.bool)  # slots whose tokens no constraint ties together
    if rows.constraints:
        for part, found in propose_by_constraint(rows, plan, frontier, logits, bans, noise, penalty):
            free[part], values[:, part] = False, found.stacked()
    if free.any():
        mine = noise if free.all() else noise.select(free)
        own = None if penalty is None else _select(penalty, free)
        found = propose_in_tiles(
            plan.propose, _select(logits, free), bans, mine, entropy=entropy, penalty=own, eos=rows.roles.eos
        )
        values[:, free] = found.stacked().cpu()  # one copy, one wait
    width = min(plan.block, frontier.shape[1])
    at = rows.in_windows(frontier, width)  # the same N slots in the same order
    tokens = scatter(at, values[0].long(), NOTHING)
    present = None
    if plan.commit.edits:
        present = rows.in_windows(torch.where(rows.masked, NOTHING, rows.ids), width)
    return Proposed(
        tokens,
        score=scatter(at, values[1], -torch.inf),
        entropy=scatter(at, values[2], torch.inf) if entropy else None,
        frontier=(at & (tokens != NOTHING)) if rows.constraints else at,
        present=present,
    )


class Taken(NamedTuple):
    """What a pass did to the rows once tokens were proposed in their windows."""

    chosen: Tensor  # (B, W) the slots that are written
    allowed: Tensor  # (B,) False where the rules fail: a slot is outside the frontier or has no token
    after: Rows
    reasons: Tensor  # (B,) why each row ends, a number of `outcome.REASONS`


def take_step(
    rows: Rows, plan: Plan, proposed: Proposed, ready: Tensor, reading: LengthReading | None = None
) -> Taken:
    """Choose slots among the proposals, write them, and find out which rows end.

    `ready` (B,) says which rows may commit tokens. Without a `reading` the length rule is left out, so shapes are
    static and nothing waits for the device: this is how a captured pass calls it.
    """
    progress = BlockProgress(
        left=proposed.frontier.sum(1),
        entry_masks=rows.entry_masks,
        passes=rows.block_passes,
        steps=plan.steps,
        block=plan.block,
    )
    chosen = plan.commit(proposed, progress)
    allowed = ~(chosen & ((proposed.tokens == NOTHING) | ~proposed.frontier)).any(1)
    filled = replace(rows.write(chosen, proposed.tokens), block_passes=rows.block_passes + ready)
    if isinstance(plan.commit, Editing):
        after = filled.advance_edited(plan.block, changed=chosen.any(1), most=plan.commit.edit_passes)
    elif reading is None:
        after = filled.advance(plan.block)
    else:
        after = plan.length.revise(rows, filled, reading, plan.block)
    if plan.trim:  # an approximation: the slots after the leftmost EOS were context for those before it
        after = after.resize(torch.minimum(after.stop, after.first_eos + 1))
    wrote = (chosen & (proposed.tokens != rows.roles.mask)).any(1)  # authors' rules may write MASK: no change
    idle = ready & ~wrote & (rows.stop == after.stop)
    if plan.commit.edits:  # a pass that changes nothing is how such a rule leaves a block
        idle = idle & (rows.block_start == after.block_start)
    after = replace(
        after,
        decoded=rows.decoded + ready,
        probed=rows.probed + rows.probing,
        shared=rows.shared + (rows.probing & ready),
        slot_passes=rows.slot_passes + rows.length,
        idle_passes=torch.where(idle, rows.idle_passes + 1, 0),
    )
    if plan.leaves_blocks:
        leaves = after.block_passes >= plan.steps
        next_block = torch.minimum(after.block_start + plan.block, after.stop)
        after = after.enter(torch.where(leaves, next_block, after.block_start), plan.block)
        after = replace(after, idle_passes=torch.where(leaves, 0, after.idle_passes))
    return Taken(chosen, allowed, after, endings(after, plan, ready))


def _select(values: Tensor, which: Tensor) -> Tensor:
    """The entries of `values` (N, ...) where `which` (N,) is True. `which` is on the host, and its indices are sent to
    the device of the values: a mask there would make the host wait."""
    return values if which.all() else values[send(which.nonzero()[:, 0], values.device)]


def scatter(where: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    """A tensor (B, L, ...) with `values` (N, ...) at the True slots of `where` (B, L) and `empty` elsewhere."""
    grid = torch.full((*where.shape, *values.shape[1:]), empty, dtype=values.dtype)
    grid[where] = values
    return grid


# ------------------------------------------------------------------------------------------ what a pass did
@dataclass(frozen=True)
class Step:
    """One forward pass over the live rows. `logits` is large: use it during the step, do not keep it."""

    before: Rows
    after: Rows  # every row of `before`, finished ones included
    proposed: Proposed  # (B, W) in the windows
    chosen: Tensor  # (B, W) the slots of the windows that were written
    finished: dict[int, Outcome]  # by row index of `before`
    where: Tensor  # (B, L) the slots whose logits were computed
    logits: Tensor  # (N, V) at `where`
    signal: Signal = field(default_factory=dict)  # what the length rule read: name -> (B,)
    edits: tuple[CanvasEdit, ...] = ()  # how lengths changed after the tokens were written, in this order

    @property
    def live(self) -> Rows:
        """The rows that take part in the next pass."""
        if not self.finished:
            return self.after
        keep = torch.ones(len(self.after), dtype=torch.bool)
        keep[list(self.finished)] = False
        return self.after.select(keep)

    def written(self, row: int) -> list[tuple[int, int, float]]:
        """Slot, token and score of every token that this pass wrote in one row, from left to right."""
        first = int(self.before.block_start[row] - self.before.prompt[row])
        tokens, score = self.proposed.tokens[row], self.proposed.score[row]
        columns = self.chosen[row].nonzero()[:, 0].tolist()
        return [(first + at, int(tokens[at]), float(score[at])) for at in columns]

    def logits_at(self, row: int, slots: Sequence[int]) -> Tensor:
        """The logits (n, V) of slots of one row that were computed, on their device."""
        columns = torch.tensor(slots, dtype=torch.long) + self.before.prompt[row]
        rank = (self.where.flatten().cumsum(0) - 1).reshape(self.where.shape)  # which of the N slots each is
        number = rank[row, columns]
        return self.logits[send(number, self.logits.device)]

    def forced(self, row: int) -> tuple[int, ...] | None:
        """The slots that this pass wrote because of a constraint: their tokens have less than 0.5 by the model alone.

        None for a row without a constraint.
        """
        if not self.before.constraints or self.before.constraints[row] is None:
            return None
        written = self.written(row)
        p = self.logits_at(row, [slot for slot, _, _ in written]).double().softmax(-1).cpu()
        return tuple(slot for n, (slot, token, _) in enumerate(written) if p[n, token] < 0.5)

    def edits_of(self, row: int) -> list[tuple[EditKind, int, int, int | None]]:
        """Kind, slot, number of slots and token of every change of one row's length, in the order of the changes."""
        start = int(self.before.prompt[row])
        found = [(edit.kind, int(edit.at[row]), int(edit.count[row]), edit.token) for edit in self.edits]
        return [(kind, at - start, count, token) for kind, at, count, token in found if count]
