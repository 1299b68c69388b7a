"""The captured pass: network, proposal, commit, write, stop and counters in one CUDA graph.

It serves settled rows: rows whose canvas keeps its length and that nobody observes. What the pass needs goes to the
device in one copy, and what it found comes back in one small tensor: tokens, scores and choices of every row's window,
its counters and whether it ended. The host keeps the rows, so that a pass may be captured, replayed, run without a
graph on a CPU, or left to the ordinary path, whatever its predecessor was.

A graph serves plans whose rules are of the same kinds; thresholds, temperatures and the like are inputs with a value
for each row, so a new value captures nothing anew. A kind of pass is captured when it comes for the third time, so that
rules or bans that a client makes up for one request cost no capture; until then the same code runs without a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from voidpad.decode.canvas import Canvas
from voidpad.decode.commit import BlockProgress, CommitRule, Proposed
from voidpad.decode.length import Fixed, RoundedUp
from voidpad.decode.loop import Step, outcome, resolved_bans
from voidpad.decode.noise import Noise
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.propose import NOTHING, Bans, ProposeRule, index
from voidpad.decode.rows import Rows, join_rows
from voidpad.decode.rules import Rule
from voidpad.decode.stop import AfterBlock, EndsTermination, EosTermination, Vanilla
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.events import Advanced
from voidpad.engine.graphs import run
from voidpad.engine.packed import PackedDenoiser, forward, is_compiled, next_power, rounded
from voidpad.errors import first_line
from voidpad.roles import Roles

REASONS = ("", "eos", "rule", "full", "stalled")  # why a row ended, by number; "" if it goes on
TILE = 1 << 25  # numbers of float64 logits that a proposal looks at together: 256 MB
WORTH = 3  # a kind of pass is captured when it comes for this time
# What of the rows a pass needs, and what it changes.
_GIVEN = ("seed", "open", "entry", "spent", "still", "decoded")
_CHANGED = ("open", "entry", "spent", "still", "decoded")

# Replaces the logits (B * W, V) of the windows; for studies that pay for a pass and choose its tokens.
Steer = Callable[[Canvas, Tensor, Tensor], Tensor]


# ------------------------------------------------------------------------------------------- a step on the device
@dataclass(frozen=True)
class StepLimits:
    """The numbers of a plan that shape a step."""

    steps: int
    patience: int
    mask: int
    whole_blocks: int  # rows end only between blocks of this size; 0: anywhere


def window_step(
    commit: CommitRule,
    limits: StepLimits,
    ends: tuple[Tensor, ...],
    found: tuple[Tensor, ...],
    finite: Tensor,
    state: tuple[Tensor, ...],
) -> Tensor:
    """One step of settled rows in their windows, the W slots of each row's open block, after tokens were proposed.

    `found` are tokens, scores and, if the commit rule reads them, entropies of all slots (B, W); `finite` (B, W) says
    where the logits were numbers. `state` is ids (B, L) with W columns to spare, prompt, stop and then what `_GIVEN`
    names, (B,) each. `ends` are the ids that end a row by the stop rule, and those that end an answer. Returns for each
    row tokens, scores and choices of the window, whether the row is well, why it ends, and what `_CHANGED` names.

    Shapes depend on the shapes of the inputs alone and the device is not read. The rules are those of `loop.advance`,
    `Rows.advance` and the stop rules, on tensors alone so that torch.compile makes a few kernels of them.
    """
    ids, prompt, stop, _, opened_at, entry, spent, idle, decoded = state
    tokens, score, *entropy = found
    width, mask = tokens.shape[1], limits.mask
    start = opened_at[:, None]
    positions = start + torch.arange(width, device=ids.device)
    before = ids.gather(1, positions)
    frontier = (positions >= prompt[:, None]) & (positions < stop[:, None]) & (before == mask)
    proposed = Proposed(
        torch.where(frontier, tokens, NOTHING),
        torch.where(frontier, score, -torch.inf),
        torch.where(frontier, entropy[0], torch.inf) if entropy else None,
        frontier,
    )
    progress = BlockProgress(frontier.sum(1), entry, spent, limits.steps, width, torch.zeros_like(entry))
    chosen = commit(proposed, progress)
    well = ~(chosen & ((tokens == NOTHING) | ~frontier)).any(1) & (finite | ~frontier).all(1)
    written = ids.scatter(1, positions, torch.where(chosen, tokens, before))

    offset = torch.arange(ids.shape[1], device=ids.device)[None]
    inside = (offset >= prompt[:, None]) & (offset < stop[:, None])
    masked = inside & (written == mask)
    ahead = _first(masked & (offset >= start), offset, stop)
    opened = torch.where(ahead < stop, opened_at + (ahead - opened_at) // width * width, stop)
    fresh = opened != opened_at
    left = (masked & (offset >= opened[:, None]) & (offset < opened[:, None] + width)).sum(1)
    idle = torch.where((chosen & (tokens != mask)).any(1), 0, idle + 1)

    first_mask = _first(masked, offset, stop)
    over = (opened >= stop) | (idle >= limits.patience)
    reason = torch.where(over, REASONS.index("stalled"), 0)
    reason = torch.where(over & ~masked.any(1), REASONS.index("full"), reason)
    by_rule, by_plan = (_ends(written, one, inside, offset, first_mask, stop) for one in ends)
    if limits.whole_blocks:
        by_rule = by_rule & ((first_mask % limits.whole_blocks == 0) | (first_mask == stop))
    reason = torch.where(by_rule, REASONS.index("rule"), reason)
    reason = torch.where(by_rule & by_plan, REASONS.index("eos"), reason)

    counters = [opened, torch.where(fresh, left, entry), torch.where(fresh, 0, spent + 1), idle, decoded + 1]
    rest = torch.stack([well.long(), reason, *counters], 1)
    return torch.cat([proposed.tokens, proposed.score.view(torch.int64), chosen.long(), rest], 1)


def _first(marked: Tensor, offset: Tensor, otherwise: Tensor) -> Tensor:
    """The column (B,) of the first True of each row; `otherwise` in rows without any."""
    return torch.minimum(torch.where(marked, offset, 1 << 40).amin(1), otherwise)


def _ends(
    written: Tensor, ends: Tensor, inside: Tensor, offset: Tensor, first_mask: Tensor, stop: Tensor
) -> Tensor:
    """Rows (B,) in which one of the tokens `ends` (K,) stands and no mask before the leftmost of them."""
    found = (written[:, :, None] == ends).any(2)
    end = _first(inside & found, offset, stop)
    return (end < stop) & (first_mask > end)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled; as it is, with a warning, from the moment on that torch cannot compile it."""
    compiled, fails = torch.compile(function), False

    def call(*given: Any) -> Any:
        nonlocal fails
        if not fails:
            try:
                return compiled(*given)
            except torch._dynamo.exc.TorchDynamoException as error:
                fails = True
                warnings.warn(
                    f"{function.__name__} runs without torch.compile: {first_line(error)}", stacklevel=2
                )
        return function(*given)

    return call


def window_of(opened: Tensor, block: int) -> Tensor:
    """The positions (B, W) of each row's open block; they may reach past the row's end."""
    return opened[:, None] + torch.arange(block, device=opened.device)


def propose_in_tiles(
    call: Callable[..., tuple[Tensor, ...]],
    rule: ProposeRule,
    logits: Tensor,
    bans: Bans,
    draws: Sequence[Tensor],
    entropy: bool,
) -> tuple[Tensor, ...]:
    """`propose_tile`, or its compiled form, on tiles of slots, so that float64 logits stay small."""
    size = max(1, TILE // logits.shape[1])
    parts = []
    for at in range(0, len(logits), size):
        piece = slice(at, at + size)
        sliced = {name: number[piece] for name, number in _tensors(rule).items()}
        part = rule.with_tensors(**sliced) if sliced else rule
        parts.append(call(part, logits[piece], bans, tuple(draw[piece] for draw in draws), entropy))
    return parts[0] if len(parts) == 1 else tuple(torch.cat(one) for one in zip(*parts, strict=True))


def propose_tile(
    rule: ProposeRule, logits: Tensor, bans: Bans, draws: Sequence[Tensor], entropy: bool
) -> tuple[Tensor, ...]:
    """Whether the logits (N, V) are numbers, and what is proposed: tokens, scores and, if asked, entropies (N,)."""
    found = rule(logits, bans, Noise(tuple(draws), logits.device), entropy=entropy)
    numbers = (logits.amax(1).isfinite(), found.tokens, found.score)
    return numbers if found.entropy is None else (*numbers, found.entropy)


# --------------------------------------------------------------------------------- plans that share a graph
def _tensors(rule: Rule) -> dict[str, Tensor]:
    return {name: value for name, value in rule.__dict__.items() if isinstance(value, Tensor)}


def _numbers(rule: Rule) -> dict[str, float]:
    """The numbers of a rule that may differ between rows of one graph: those that are on."""
    off = {"top_p": 1.0}
    numbers = {name: value for name, value in rule.__dict__.items() if isinstance(value, float)}
    return {name: value for name, value in numbers.items() if value != off.get(name, 0.0)}


def kind_of(plan: Plan) -> Hashable | None:
    """What plans must have in common to share a graph; None for a plan that no graph may hold."""
    ours = all(type(rule).__module__.startswith("voidpad.") for rule in (plan, plan.propose, plan.commit))
    known = type(plan.stop) in (Vanilla, EosTermination, EndsTermination, AfterBlock)
    still = isinstance(plan.length, Fixed | RoundedUp) or plan.length.settles_first
    leads = plan.causal is not None and plan.causal.lead
    edits = plan.trim or plan.fill or plan.leaves_blocks or plan.penalty is not None
    if not (ours and known and still) or leads or edits:
        return None
    rules = []
    for rule in (plan.propose, plan.commit):
        numbers = _numbers(rule)
        fixed = [(name, value) for name, value in rule.__dict__.items() if name not in numbers]
        rules.append((type(rule), *fixed, *sorted(numbers)))
    causal = plan.causal.size if plan.causal is not None else 0
    return (*rules, plan.stop, plan.block, plan.steps, plan.patience, plan.ban, plan.mute, causal)


# ---------------------------------------------------------------------------------------------- a whole pass
@dataclass(frozen=True)
class _KnownPlan:
    plan: Plan
    kind: Hashable | None
    numbers: Tensor  # (1, K) the numbers of its rules that are inputs of a graph


@dataclass
class CapturedPass:
    """Runs the passes of settled rows of one network: from a graph, or as they are where none fits.

    It is for GPUs in half precision. On a CPU it computes the same, and the ordinary path is faster.
    """

    denoise: PackedDenoiser | CachedDenoiser
    steer: Steer | None = None
    _known: dict[int, _KnownPlan] = field(default_factory=dict)  # by the plan's id()
    _seen: dict[Hashable, int] = field(default_factory=dict)

    def __call__(self, groups: Sequence[tuple[Plan, Rows]]) -> list[Advanced] | None:
        """The groups after one pass; None if they have to take the ordinary path, which has changed nothing."""
        kinds = {self._of(plan).kind for plan, _ in groups}
        if len(kinds) > 1 or None in kinds or any(bool(rows.probing.any()) for _, rows in groups):
            return None
        if any(
            rows.constraints for _, rows in groups
        ):  # the ordinary path proposes all slots of such a row together
            return None
        inner, graphs = self.denoise.inner, self.denoise.graphs
        plan, rows = groups[0][0], join_rows([rows for _, rows in groups])
        positions = window_of(rows.open, plan.block)
        width = rounded(rows.canvas.ids.shape[1] + plan.block)
        valid = (positions < rows.canvas.stop[:, None]) & (positions >= rows.canvas.prompt[:, None])
        where = torch.zeros(len(rows), width, dtype=torch.bool).scatter(1, positions, valid)
        packing, done = self.denoise.pack(rows.canvas, where[:, : rows.canvas.ids.shape[1]])
        graphed = graphs.fit(len(packing.ids), inner.device) and not len(packing.horizons)
        count = next_power(len(rows)) if graphed else len(rows)
        outputs = torch.full((count, plan.block), len(packing.ids) - 1)
        outputs[: len(rows)][valid] = packing.outputs
        ids = pad(rows.canvas.ids, (0, width - rows.canvas.ids.shape[1]), value=rows.canvas.roles.eos)
        state = [ids, rows.canvas.prompt, rows.canvas.stop, rows.canvas.key]
        state += [getattr(rows, name) for name in _GIVEN]
        # A row of numbers of the rules for each row, (B, K) float64.
        numbers = torch.cat([self._of(plan).numbers.expand(len(rows), -1) for plan, rows in groups])
        if count > len(rows):  # rows without slots fill the bucket
            state = [pad(part, (0,) * (2 * part.dim() - 1) + (count - len(rows),)) for part in state]
            numbers = pad(numbers, (0, 0, 0, count - len(rows)), value=1.0)
        network = [packing.ids, packing.positions, packing.queries, packing.keys, outputs.view(-1)]
        network += [packing.horizons, packing.stored]
        inputs = [*network, *state, numbers.view(torch.int64)]
        store = getattr(self.denoise, "store", None)
        call = _Call(self, plan, rows.canvas.roles, store, packing.longest)
        kind = (kinds.pop(), packing.longest, getattr(store, "version", 0))
        if graphed and self._is_worth(kind, inputs):
            flat, logits = graphs(call, inputs, inner.device, key=kind)
        else:
            flat, logits = run(call, inputs, inner.device)
        done()
        return self._read(groups, rows, count, positions, flat.cpu(), logits)

    def _of(self, plan: Plan) -> _KnownPlan:
        known = self._known.get(id(plan))
        if known is None or known.plan is not plan:
            if len(self._known) > 1024:
                self._known.clear()
            values = [*_numbers(plan.propose).values(), *_numbers(plan.commit).values()]
            numbers = torch.tensor([values], dtype=torch.float64)
            known = self._known[id(plan)] = _KnownPlan(plan, kind_of(plan), numbers)
        return known

    def _is_worth(self, kind: Hashable, inputs: Sequence[Tensor]) -> bool:
        """Whether a graph for this kind of pass exists or shall be captured now."""
        name = (kind, tuple(tuple(part.shape) for part in inputs))
        self._seen[name] = self._seen.get(name, 0) + 1
        if len(self._seen) > 4096:
            self._seen.clear()
        return self._seen.get(name, 0) >= WORTH

    def _read(
        self,
        groups: Sequence[tuple[Plan, Rows]],
        rows: Rows,
        count: int,
        positions: Tensor,
        flat: Tensor,
        logits: Tensor,
    ) -> list[Advanced] | None:
        """What the pass found, from its one tensor; None if a row cannot go on: the ordinary path says why."""
        block, size = positions.shape[1], len(rows)
        found = flat.view(count, -1)[:size]
        tokens, score, chosen = found[:, : 3 * block].split(block, 1)
        rest = found[:, 3 * block :].unbind(1)
        well, reason, *counters = rest
        if not bool(well.all()):
            return None
        chosen = chosen.bool()
        width = rows.canvas.ids.shape[1]
        before = pad(rows.canvas.ids, (0, block))
        ids = before.scatter(1, positions, torch.where(chosen, tokens, before.gather(1, positions)))[
            :, :width
        ]
        changed: dict[str, Any] = dict(zip(_CHANGED, counters, strict=True))
        after = replace(rows, canvas=replace(rows.canvas, ids=ids), **changed)
        result, at = [], 0
        for plan, part in groups:
            piece = slice(at, at + len(part))
            own = after if len(groups) == 1 else after.select(torch.arange(piece.start, piece.stop))
            reasons = enumerate(reason[piece].tolist())
            finished = {row: outcome(own, row, plan, REASONS[code]) for row, code in reasons if code}
            step = _LazyStep(
                plan, part, own, finished, positions[piece], tokens[piece], score[piece], chosen[piece],
                logits[piece.start * block : piece.stop * block],
            )  # fmt: skip
            result.append(Advanced(part, own, finished, step))
            at = piece.stop
        return result


@dataclass(frozen=True)
class _Call:
    """The pass on the device, from the tensors that were copied there: what a graph captures."""

    owner: CapturedPass
    plan: Plan
    roles: Roles
    store: Any
    longest: tuple[int, int]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        network, (ids, prompt, stop, key, *given, numbers) = inputs[:7], inputs[7:]
        owner, plan, device = self.owner, self.plan, ids.device
        logits = forward(owner.denoise.inner, self.store, self.longest, *network)
        facts = dict(zip(_GIVEN, given, strict=True))
        positions = window_of(facts["open"], plan.block)
        if owner.steer is not None:
            logits = owner.steer(Canvas(ids, prompt, stop, key, self.roles), positions, logits)
        compiled = ids.is_cuda and is_compiled(owner.denoise.inner.body)
        # torch.compile folds the range of tokens into the hash behind random draws, where its constants overflow.
        tile = _compiled(propose_tile) if compiled and not _numbers(plan.propose) else propose_tile
        propose, commit = self._with_numbers(numbers.view(torch.float64))
        bans = resolved_bans(plan, self.roles, vocab=logits.shape[1]).on(device, logits.shape[1])
        slot = positions - prompt[:, None]
        draws = [part[:, None].expand_as(slot).reshape(-1) for part in (facts["seed"], key, facts["decoded"])]
        found = propose_in_tiles(
            tile, propose, logits, bans, [*draws, slot.reshape(-1)], commit.reads_entropy
        )
        finite, *proposed = (part.view(slot.shape) for part in found)
        ends = tuple(index(one, device) for one in (_stop_ids(plan, self.roles), plan.ends(self.roles)))
        whole = plan.stop.block if isinstance(plan.stop, AfterBlock) else 0
        limits = StepLimits(plan.steps, plan.patience, self.roles.mask, whole)
        step = _compiled(window_step) if compiled else window_step
        return step(commit, limits, ends, tuple(proposed), finite, (ids, prompt, stop, *given)), logits

    def _with_numbers(self, numbers: Tensor) -> tuple[ProposeRule, CommitRule]:
        """The rules with tensors in place of the numbers that are on: (N, 1) in the proposal, (B, 1) in the commit."""
        columns = iter(numbers.split(1, 1))  # (B, 1) each
        block, propose, commit = self.plan.block, self.plan.propose, self.plan.commit
        of_slots = {name: next(columns).repeat_interleave(block, 0) for name in _numbers(propose)}
        of_rows = {name: next(columns) for name in _numbers(commit)}
        return propose.with_tensors(**of_slots), commit.with_tensors(**of_rows)


def _stop_ids(plan: Plan, roles: Roles) -> tuple[int, ...]:
    """The tokens by which the plan's stop rule ends a row."""
    if isinstance(plan.stop, Vanilla):
        return ()
    return (roles.eos,) if isinstance(plan.stop, EosTermination) else roles.ends


@dataclass(frozen=True)
class _LazyStep:
    """Makes the `Step` of a captured pass for whoever wants to see it."""

    plan: Plan
    before: Rows
    after: Rows
    finished: dict[int, Outcome]
    positions: Tensor  # (B, W)
    tokens: Tensor
    score: Tensor
    chosen: Tensor
    logits: Tensor  # (B * W, V)

    def __call__(self) -> Step:
        frontier = self.plan.frontier(self.before)
        width = frontier.shape[1]
        inside = pad(frontier, (0, self.positions.shape[1])).gather(1, self.positions)

        def spread(values: Tensor, empty: float) -> Tensor:
            grid = values.new_full((len(values), width + self.positions.shape[1]), empty)
            return grid.scatter(1, self.positions, values)[:, :width]

        return Step(
            before=self.before,
            where=frontier,
            logits=self.logits[inside.view(-1).nonzero()[:, 0].to(self.logits.device)],
            frontier=frontier,
            chosen=spread(self.chosen, False),
            tokens=spread(self.tokens, NOTHING),
            score=spread(self.score.contiguous().view(torch.float64), -torch.inf),
            signal={},
            after=self.after,
            finished=self.finished,
        )
