"""The decoding loop. Read this first.

Every pass: find the slots that may be written (the masked slots of each row's active block), ask the denoiser
for the slots somebody needs, propose, commit, fill, let the length rule edit the canvas, let the stop rule
end rows. Each row has its own clock, so ragged prompts, ragged canvases and early ends need no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas, send
from voidpad.decode.length import Look, Signal
from voidpad.decode.noise import Noise
from voidpad.decode.plan import Plan
from voidpad.decode.propose import NOTHING, Bans, propose_in_pieces
from voidpad.decode.rows import Rows
from voidpad.errors import ConfigError, VoidpadError
from voidpad.roles import Roles

Denoiser = Callable[[Canvas, Tensor], Tensor]  # (canvas, where (B, L) bool) -> aligned logits (N, V)
Observe = Callable[[Canvas], Tensor]  # slots whose logits are wanted besides, (B, L) bool


@dataclass(frozen=True)
class Outcome:
    """One finished row."""

    key: int
    ids: list[int]  # the whole canvas
    tokens: list[
        int
    ]  # what counts as the answer: up to and including the first EOS, unless the plan keeps all
    passes_decode: int
    passes_probe: int
    passes_shared: int
    stop_reason: str
    seconds: float = 0.0

    @property
    def canvas(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Step:
    """One forward pass over the live rows. `logits` is large: use it, do not keep it."""

    before: Rows
    where: Tensor  # (B, L) the slots asked for
    logits: Tensor  # (N, V) at `where`
    frontier: Tensor  # (B, L) slots that could be written
    chosen: Tensor  # (B, L) slots that were
    tokens: Tensor  # (B, L) proposals on the frontier
    score: Tensor  # (B, L)
    signal: Signal  # what the length rule read, by row
    after: Rows  # every row of `before`, finished ones included
    finished: dict[int, Outcome]  # by row index of `before`

    @property
    def live(self) -> Rows:
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
    """Decode all prompts side by side, one Step per forward pass. A row's key is its place unless given."""
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
    prompts: Sequence[Sequence[int]], roles: Roles, plan: Plan, *, keys: Sequence[int], seeds: Sequence[int]
) -> Rows:
    """Rows before their first pass."""
    for prompt in prompts:
        check(prompt, roles, plan)
    canvas = Canvas.blank(prompts, plan.length.canvas, roles, keys)
    return Rows.begin(canvas, plan.block, seeds=seeds, probing=plan.length.probes)


def check(prompt: Sequence[int], roles: Roles, plan: Plan) -> None:
    """Refuse what no pass could make sense of."""
    if not len(prompt):
        raise ConfigError("the prompt is empty; give it at least one token.")
    if roles.mask in prompt:
        raise ConfigError(f"the prompt holds the mask token {roles.mask}; remove it.")
    roles.ids([*plan.ban, *plan.mute])


def wanted(rows: Rows, plan: Plan) -> Tensor:
    """The slots this pass needs (B, L). Probes ask for their first block too: the last one decodes it."""
    return rows.window(plan.block) | plan.length.watch(rows)


def advance(rows: Rows, plan: Plan, where: Tensor, logits: Tensor) -> Step:
    """One pass: what the logits at `where` make of the rows."""
    roles = rows.canvas.roles
    bans = resolved(plan, roles, vocab=logits.shape[1])
    watched = plan.length.watch(rows)
    seen = at(logits, watched[where]) if watched.any() else torch.empty(0, logits.shape[1])
    grid = scatter(watched, plan.length.measure(seen, roles, bans).cpu())
    signal = plan.length.signal(rows, grid)
    ready = plan.length.ready(rows, signal)
    frontier = rows.window(plan.block) & ready[:, None]
    tokens, score = propose(rows, plan, frontier, at(logits, frontier[where]), bans)
    chosen = plan.commit(score, frontier, rows.clock(frontier, plan.steps))
    if (chosen & (tokens == NOTHING)).any():
        raise VoidpadError(f"every token is banned at a chosen slot: ban={plan.ban}. Ban fewer ids.")
    filled = replace(rows, canvas=rows.canvas.fill(chosen, tokens), spent=rows.spent + ready)
    look = Look(grid, signal, frontier, chosen)
    after = count(
        rows, plan.length.revise(rows, filled, look, plan.block), ready, wrote=chosen & (tokens != roles.mask)
    )
    finished = finish(after, plan, ready)
    return Step(rows, where, logits, frontier, chosen, tokens, score, signal, after, finished)


def resolved(plan: Plan, roles: Roles, *, vocab: int) -> Bans:
    """The plan's ban and mute sets as ids of this vocabulary."""
    bans = Bans(roles.ids([*plan.ban, *roles.never]), roles.ids(plan.mute), roles.mask)
    outside = [token for token in (*bans.ban, *bans.mute) if not 0 <= token < vocab]
    if outside:
        raise ConfigError(f"ban or mute holds {outside[0]}; the vocabulary ends at {vocab - 1}.")
    return bans


def propose(rows: Rows, plan: Plan, frontier: Tensor, logits: Tensor, bans: Bans) -> tuple[Tensor, Tensor]:
    """Tokens and scores on the frontier, laid out as (B, L)."""
    row, column = frontier.nonzero(as_tuple=True)
    if not len(row):
        return torch.full_like(rows.canvas.ids, NOTHING), torch.full(frontier.shape, -torch.inf).double()
    slot = column - rows.canvas.prompt[row]
    noise = Noise((rows.seed[row], rows.canvas.key[row], rows.decoded[row], slot), logits.device)
    tokens, score = propose_in_pieces(plan.propose, logits, bans, noise)
    return scatter(frontier, tokens, NOTHING), scatter(frontier, score, -torch.inf)


def count(before: Rows, rows: Rows, ready: Tensor, *, wrote: Tensor) -> Rows:
    """Charge the pass to every row that took part in it."""
    same = ~wrote.any(1) & (before.canvas.stop == rows.canvas.stop)  # nothing written, no edit of the length
    return replace(
        rows,
        decoded=rows.decoded + ready,
        probed=rows.probed + before.probing,
        shared=rows.shared + (before.probing & ready),
        still=torch.where(same & ready, rows.still + 1, 0),
    )


def finish(rows: Rows, plan: Plan, ready: Tensor) -> dict[int, Outcome]:
    """Rows that end with this pass, and why."""
    over = (rows.open >= rows.canvas.stop) | (rows.still >= plan.patience)
    ended, spent = plan.stop(rows.canvas), rows.decoded >= plan.length.passes
    if not (ready & (ended | over | spent)).any():
        return {}
    done: list[tuple[str, Tensor]] = [  # the first that holds is the reason
        ("eos", ended),
        ("full", over & ~rows.canvas.masked.any(1)),
        ("stalled", over),
        ("limit", spent),
    ]
    reasons: dict[int, str] = {}
    for reason, mask in reversed(done):
        reasons |= dict.fromkeys((mask & ready).nonzero()[:, 0].tolist(), reason)
    return {row: outcome(rows, row, plan, reasons[row]) for row in sorted(reasons)}


def outcome(rows: Rows, row: int, plan: Plan, reason: str) -> Outcome:
    ids = rows.canvas.answer(row)
    eos = rows.canvas.roles.eos
    ends_here = (plan.cut or reason == "eos") and eos in ids
    tokens = ids[: ids.index(eos) + 1] if ends_here else ids
    counts = (int(rows.decoded[row]), int(rows.probed[row]), int(rows.shared[row]))
    return Outcome(int(rows.canvas.key[row]), ids, tokens, *counts, reason)


def at(logits: Tensor, wanted: Tensor) -> Tensor:
    """The rows of `logits` marked in `wanted` (N,), found on the host so that a GPU need not wait."""
    return logits if wanted.all() else logits[send(wanted.nonzero()[:, 0], logits.device)]


def scatter(where: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    """Values (N, ...) laid out at the True places of `where` (B, L)."""
    grid = torch.full((*where.shape, *values.shape[1:]), empty, dtype=values.dtype)
    grid[where] = values
    return grid
