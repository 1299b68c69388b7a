"""The decoding loop. Read this first.

In every pass the loop finds the frontier (the masked slots of each row's active block), computes the logits that the
proposal and the length rule need, lets the adjust rule move some of the logits if the plan has one, proposes tokens,
lets the block rule, if there is one, say where a block that is entered ends, chooses which tokens to commit and writes
these. Then the length rule may edit the canvas, and the stop rule may end rows. Each row has its own position and
counters, so prompts and canvases of different lengths and rows that end early need no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas, send
from voidpad.decode.fields import declared, name_of
from voidpad.decode.length import Look, Signal
from voidpad.decode.noise import Noise
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.propose import NOTHING, Bans, propose_in_pieces
from voidpad.decode.rows import Rows
from voidpad.decode.stop import terminated
from voidpad.errors import ConfigError, VoidpadError
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
) -> Iterator[Step]:
    """Decode all prompts side by side; yields one Step per forward pass.

    `keys` identify the rows in outcomes and, with the seed, decide their random draws; 0, 1, 2, ... by default.
    """
    keys = range(len(prompts)) if keys is None else keys
    rows = begin(prompts, roles, plan, keys=keys, seeds=[seed] * len(prompts))
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
) -> Rows:
    """The rows before their first pass: each prompt followed by a canvas of masks.

    A row's canvas is bounded by the smaller of its own limit and the plan's. `keys` and `seeds` decide a row's random
    draws; `handles` identify rows to caches and callers (the keys by default).
    """
    for prompt in prompts:
        check(prompt, roles, plan)
    longest = plan.length.limit
    bounds = [longest if limit is None else min(limit, longest) for limit in limits or [None] * len(prompts)]
    limit, size = (torch.tensor(n, dtype=torch.long) for n in (bounds, [len(prompt) for prompt in prompts]))
    slots = plan.whole(size, limit.clamp(max=plan.length.canvas))
    canvas = Canvas.blank(prompts, slots, roles, keys, handles)
    limit, start = plan.whole(size, limit), plan.first_block(size)
    facts = {"probing": plan.length.probes, "sized": plan.blocks is not None}
    return Rows.begin(canvas, plan.block, open=start, seeds=seeds, limit=limit, **facts)


def check(prompt: Sequence[int], roles: Roles, plan: Plan) -> None:
    """Refuse an empty prompt, a prompt that holds MASK, and a plan that names roles the model does not have."""
    if not len(prompt):
        raise ConfigError("the prompt is empty; give it at least one token.")
    if roles.mask in prompt:
        raise ConfigError(f"the prompt holds the mask token {roles.mask}; remove it.")
    roles.ids(plan.names)


def wanted(rows: Rows, plan: Plan) -> Tensor:
    """The slots (B, L) whose logits the next pass needs.

    A probing row also requests its first block, because the final probe doubles as the first decoding pass.
    """
    return plan.proposing(rows) | plan.length.watch(rows)


def advance(rows: Rows, plan: Plan, where: Tensor, logits: Tensor) -> Step:
    """One pass over the rows, given the logits (N, V) at the True slots of `where`."""
    roles = rows.canvas.roles
    bans = resolved_bans(plan, roles, vocab=logits.shape[1])
    watched = plan.length.watch(rows)
    seen = _at(logits, watched[where]) if watched.any() else torch.empty(0, logits.shape[1])
    grid = scatter(watched, plan.length.measure(seen, roles, bans).cpu())
    signal = plan.length.read(rows, grid)
    ready = plan.length.ready(rows, signal)
    frontier = plan.proposing(rows) & ready[:, None]
    adjusted, tokens, score, *entropy = _propose(rows, plan, frontier, _at(logits, frontier[where]), bans)
    if plan.blocks is not None:
        delimiters = roles.ids(plan.blocks.delimiters)
        rows = plan.blocks(rows, tokens, score, ready, delimiters, plan.block)
        beyond = frontier & ~plan.frontier(rows)  # slots that were only looked at
        adjusted = replace(rows, canvas=adjusted.canvas.forget(beyond))
        frontier = frontier & ~beyond
        tokens, score = tokens.masked_fill(beyond, NOTHING), score.masked_fill(beyond, -torch.inf)
        entropy = [one.masked_fill(beyond, torch.inf) for one in entropy]
    chosen = plan.commit(score, frontier, rows.progress(frontier, plan.steps, plan.block), *entropy)
    if (chosen & (tokens == NOTHING)).any():
        if (chosen & ~frontier).any():
            raise VoidpadError(f"commit={name_of(plan.commit)} chose a slot outside the frontier.")
        raise VoidpadError(f"every token is banned at a chosen slot: ban={plan.ban}. Ban fewer ids.")
    filled = replace(adjusted, canvas=adjusted.canvas.fill(chosen, tokens), spent=rows.spent + ready)
    look = Look(grid, signal, frontier, chosen)
    revised = plan.length.revise(rows, filled, look, plan.block)
    if (revised.canvas.length > torch.maximum(rows.limit, rows.canvas.length)).any():
        raise VoidpadError(f"length={name_of(plan.length)} grew a canvas past its limit of {plan.limit}.")
    if plan.trim:  # an approximation: the slots after the leftmost EOS were context for those before it
        canvas = revised.canvas
        revised = replace(revised, canvas=canvas.resize(torch.minimum(canvas.stop, canvas.first_eos + 1)))
    after = _count(rows, revised, ready, wrote=chosen & (tokens != roles.mask))
    if plan.leave_blocks:
        after = after.leave_spent(plan.block, plan.steps)
    finished = _finish(after, plan, ready)
    return Step(rows, where, logits, frontier, chosen, tokens, score, signal, after, finished)


def resolved_bans(plan: Plan, roles: Roles, *, vocab: int) -> Bans:
    """The plan's banned and muted roles as token ids; refuses ids outside the vocabulary."""
    bans = Bans(roles.ids([*plan.ban, *roles.never]), roles.ids(plan.mute), roles.mask)
    named = {"ban or mute": (*bans.ban, *bans.mute)}
    if plan.blocks is not None:
        named["delimiters"] = roles.ids(plan.blocks.delimiters)
    for where, tokens in named.items():
        outside = [token for token in tokens if not 0 <= token < vocab]
        if outside:
            raise ConfigError(f"{where} holds {outside[0]}; the vocabulary ends at {vocab - 1}.")
    return bans


def _propose(
    rows: Rows, plan: Plan, frontier: Tensor, logits: Tensor, bans: Bans
) -> tuple[Rows, Tensor, Tensor, *tuple[Tensor, ...]]:
    """The rows with what the adjust rule remembers, proposed tokens and scores (B, L), and the entropy if it is read.

    Outside the frontier tokens are NOTHING, scores minus infinity and entropies infinite.
    """
    reads_entropy = declared(plan.commit, "reads_entropy", False)
    row, column = frontier.nonzero(as_tuple=True)
    if not len(row):
        nowhere = torch.full(frontier.shape, -torch.inf).double()
        return (
            rows,
            torch.full_like(rows.canvas.ids, NOTHING),
            nowhere,
            *([-nowhere] if reads_entropy else []),
        )
    slot = column - rows.canvas.prompt[row]
    draw = (rows.seed[row], rows.canvas.key[row], rows.decoded[row], slot)
    noise = Noise(draw, logits.device, still=plan.greedy(column))
    additions = None
    if plan.adjust is not None:
        additions, rows = plan.adjust(rows, frontier, logits)
    rule = declared(plan.propose, "with_entropy", None) if reads_entropy else plan.propose
    tokens, score, *entropy = propose_in_pieces(rule, logits, bans, noise, additions)
    spread = [scatter(frontier, one, torch.inf) for one in entropy]
    return rows, scatter(frontier, tokens, NOTHING), scatter(frontier, score, -torch.inf), *spread


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
    ended, spent = plan.stop(rows.canvas), rows.decoded >= plan.length.passes
    if not (ready & (ended | over | spent)).any():
        return {}
    done: list[tuple[str, Tensor]] = [  # the first that holds is the reason
        ("eos", ended & terminated(rows.canvas, plan.ends(rows.canvas.roles))),
        ("rule", ended),  # only a stop rule of the user's own ends a row without an EOS
        ("full", over & ~rows.canvas.masked.any(1)),
        ("limit", (rows.open >= rows.canvas.stop) & plan.leave_blocks),  # masks were left behind
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
    )


def _at(logits: Tensor, wanted: Tensor) -> Tensor:
    """The rows of `logits` (N, V) where `wanted` (N,) is True; indices come from the host, so a GPU need not wait."""
    return logits if wanted.all() else logits[send(wanted.nonzero()[:, 0], logits.device)]


def scatter(where: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    """A tensor (B, L, ...) with `values` (N, ...) at the True slots of `where` (B, L) and `empty` elsewhere."""
    grid = torch.full((*where.shape, *values.shape[1:]), empty, dtype=values.dtype)
    grid[where] = values
    return grid
