"""The captured pass: network, proposal, commit, write, stop and counters in one CUDA graph.

It serves settled rows: rows whose canvas keeps its length and that nobody observes. (`Rows.settled` is another thing, a
note of length rules.) What the pass needs goes to the device in one copy, and what it found comes back in one small
tensor: tokens, scores and choices of every row's window, its counters and whether it ended. The rules are those of
`voidpad.decode.loop`: proposals in tiles, then `take_step`.

The host keeps the rows, so that a pass may be captured, replayed, run without a graph on a CPU, or left to the ordinary
path, whatever its predecessor was. The device keeps them too: a pass writes new tokens and counters into the state that
it has read. While the same rows stay in the same blocks, the next pass is therefore a replay with nothing to send.

A graph serves plans whose rules are of the same kinds; thresholds, temperatures and the like are inputs with a value
for each row, so a new value captures nothing anew. A kind of pass is captured when it comes for the third time, so that
rules or bans that a client makes up for one request cost no capture; until then the same code runs without a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from voidpad.decode.commit import Proposed
from voidpad.decode.loop import Step, resolved_bans, take_step
from voidpad.decode.noise import Noise
from voidpad.decode.outcome import finish
from voidpad.decode.plan import Plan
from voidpad.decode.propose import NOTHING, Bans, ProposeRule, SlotProposal, propose_in_tiles
from voidpad.decode.rows import Rows, join, send, window_of
from voidpad.decode.rules import Rule
from voidpad.engine.graphs import run
from voidpad.engine.packed import (
    PackedDenoiser,
    Packing,
    forward,
    is_compiled,
    next_power,
    rounded,
)
from voidpad.errors import first_line
from voidpad.roles import Roles

CAPTURE_AT = 3  # a kind of pass is captured when it comes for this time
MOST_STATES = 256  # more kinds and sizes of rows begin anew: bans come from clients
# The fields of `Rows` that a pass needs besides ids: those that it leaves as they are, and those that it changes.
FIXED = ("prompt", "stop", "key", "seed")
COUNTERS = ("block_start", "entry_masks", "block_passes", "idle_passes", "decoded", "slot_passes")

# Replaces the logits (B * W, V) of the windows; for studies that pay for a pass and choose its tokens.
Steer = Callable[[Rows, Tensor, Tensor], Tensor]


# ------------------------------------------------------------------------------------------- a step on the device
def device_step(
    plan: Plan, rows: Rows, tokens: Tensor, score: Tensor, entropy: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of settled rows, given what was proposed at all W slots of their windows (B, W).

    Returns one tensor of integers (B, 3 W + 8): tokens, scores (their bits) and choices of the window, whether the row
    may write them, why it ends, and the six `COUNTERS`. Then ids (B, L) and counters (6, B) after the step.
    """
    width = tokens.shape[1]
    frontier = rows.in_windows(rows.masked, width)
    proposed = Proposed(
        torch.where(frontier, tokens, NOTHING),
        torch.where(frontier, score, -torch.inf),
        None if entropy is None else torch.where(frontier, entropy, torch.inf),
        frontier,
    )
    taken = take_step(rows, plan, proposed, ~rows.probing)
    allowed = taken.allowed & ~proposed.score.isnan().any(1)
    counters = torch.stack([getattr(taken.after, name) for name in COUNTERS])
    ends = torch.stack([allowed.long(), taken.reasons], 1)
    window = [proposed.tokens, proposed.score.view(torch.int64), taken.chosen.long()]
    return torch.cat([*window, ends, counters.T], 1), taken.after.ids, counters


def propose_checked(
    rule: ProposeRule, logits: Tensor, bans: Bans, noise: Noise, entropy: bool
) -> SlotProposal:
    """What the rule proposes, with a score of NaN where logits are not finite: `device_step` refuses such rows."""
    found = rule(logits, bans, noise, entropy=entropy)
    return replace(found, score=torch.where(logits.amax(1).isfinite(), found.score, torch.nan))


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


# --------------------------------------------------------------------------------- plans that share a graph
def _numbers(rule: Rule) -> dict[str, float]:
    """The numbers of a rule that may differ between rows of one graph: those that are not at the value "off"."""
    off = {"top_p": 1.0}
    numbers = {name: value for name, value in vars(rule).items() if isinstance(value, float)}
    return {name: value for name, value in numbers.items() if value != off.get(name, 0.0)}


def kind_of(plan: Plan) -> Hashable | None:
    """What plans must have in common to share a graph; None for a plan that no graph may hold."""
    leads = plan.causal is not None and plan.causal.lead
    special = plan.trim or plan.fill or plan.leaves_blocks or plan.commit.edits or plan.penalty is not None
    if leads or special or not plan.length.keeps_length:
        return None
    parts = (plan, plan.propose, plan.commit, plan.stop, plan.length)
    if not all(type(rule).__module__.startswith("voidpad.") for rule in parts):  # others may do anything
        return None
    rules = []
    for rule in (plan.propose, plan.commit):
        numbers = _numbers(rule)
        fixed = [(name, value) for name, value in vars(rule).items() if name not in numbers]
        rules.append((type(rule), *fixed, *sorted(numbers)))
    causal = plan.causal.size if plan.causal is not None else 0
    return (*rules, plan.stop, plan.block, plan.steps, plan.patience, plan.ban, plan.mute, causal)


@lru_cache(1024)
def _kind_and_numbers(plan: Plan) -> tuple[Hashable | None, Tensor]:
    """What plans that share a graph have in common, and the numbers (1, K) of this plan that are inputs of it."""
    numbers = [*_numbers(plan.propose).values(), *_numbers(plan.commit).values()]
    return kind_of(plan), torch.tensor([numbers], dtype=torch.float64)


# ---------------------------------------------------------------------------------------------- a whole pass
@dataclass
class _OpenBlocks:
    """The rows of a pass and their windows. They serve as long as the same rows stay in the same blocks."""

    kind: Hashable  # of the plans
    groups: Sequence[tuple[Plan, Rows]]
    rows: Rows  # of all groups
    where: Tensor  # (B, L) the slots of the windows
    valid: Tensor  # (B, W) which positions of the windows are slots
    # What the network is given, by the id() of the packing: what stays the same need not be sent again.
    inputs: dict[int, tuple[Packing, Sequence[Tensor]]] = field(default_factory=dict)

    @classmethod
    def of(cls, groups: Sequence[tuple[Plan, Rows]], kind: Hashable) -> _OpenBlocks:
        rows = join([rows for _, rows in groups])
        positions = window_of(rows, groups[0][0].block)
        valid = (positions < rows.stop[:, None]) & (positions >= rows.prompt[:, None])
        return cls(kind, groups, rows, rows.spread(valid, torch.zeros_like(rows.slots)), valid)

    def serves(self, groups: Sequence[tuple[Plan, Rows]]) -> bool:
        """Whether these are the rows of these blocks as the last pass left them."""
        pairs = zip(groups, self.groups, strict=False)
        return len(groups) == len(self.groups) and all(a is c and b is d for (a, b), (c, d) in pairs)

    def network(self, packing: Packing, count: int, shift: int) -> Sequence[Tensor]:
        """The inputs of the network for this packing, with `count` rows.

        They are those of `Packing.inputs`, with places of the ids in the state (laid flat) instead of the ids.
        """
        if id(packing) not in self.inputs:
            size, block = self.valid.shape
            outputs = torch.full((count, block), len(packing) - 1)
            outputs[:size][self.valid] = packing.outputs(self.where, shift)
            source = packing.source(rounded(self.rows.ids.shape[1] + block))
            self.inputs[id(packing)] = packing, packing.inputs(source, outputs.view(-1))
        return self.inputs[id(packing)][1]

    def state(self, count: int) -> list[Tensor]:
        """The rows as the pass reads them: ids, `FIXED`, `COUNTERS`, and the numbers (B, K) of the rows' rules.

        Rows without slots are added up to `count`. The numbers are given as integers of the same bits.
        """
        rows, (size, block) = self.rows, self.valid.shape
        columns = rows.ids.shape[1]
        spare = rounded(columns + block) - columns  # a window may reach past the end of its row
        parts = [torch.stack([getattr(rows, name) for name in names]) for names in (FIXED, COUNTERS)]
        numbers = torch.cat([_kind_and_numbers(plan)[1].expand(len(own), -1) for plan, own in self.groups])
        return [
            pad(rows.ids, (0, spare, 0, count - size)),
            *(pad(part, (0, count - size)) for part in parts),
            pad(numbers, (0, 0, 0, count - size), value=1.0).view(torch.int64),
        ]


@dataclass
class _State:
    """Rows on the device, in tensors that graphs read and change."""

    tensors: list[Tensor]
    rows: Rows | None = None  # the rows that they hold


@dataclass
class CapturedPass:
    """Runs the passes of settled rows of one network: from a graph, or as they are where none fits.

    It is for GPUs in half precision. On a CPU it computes the same, and the ordinary path is faster.
    """

    denoise: PackedDenoiser
    steer: Steer | None = None
    _times_seen: dict[Hashable, int] = field(default_factory=dict)
    _states: dict[Hashable, _State] = field(default_factory=dict)  # by the shapes of its tensors
    _opened: _OpenBlocks | None = None  # of the last pass

    def __call__(self, groups: Sequence[tuple[Plan, Rows]]) -> list[Step] | None:
        """The steps of the groups; None if they have to take the ordinary path, and nothing has changed."""
        opened = self._opened
        if opened is None or not opened.serves(groups):
            self._opened = None
            kinds = {_kind_and_numbers(plan)[0] for plan, _ in groups}
            # The ordinary path reads lengths, and it proposes all slots of a row with a constraint together.
            outside = any(bool(rows.constraints) or bool(rows.probing.any()) for _, rows in groups)
            if len(kinds) > 1 or None in kinds or outside:
                return None
            opened = _OpenBlocks.of(groups, kinds.pop())
        packing, done = self.denoise.pack(opened.rows, opened.where)
        (flat, logits, _), state = self._compute(opened, packing)
        done()
        size, block = opened.valid.shape
        found, logits = flat[:size].cpu(), logits[: size * block]
        if not opened.valid.all():  # after the one wait for the device
            logits = logits[send(opened.valid.view(-1).nonzero()[:, 0], logits.device)]
        steps, after = _steps(opened, found, logits)
        if steps is None:
            self._opened = None
            return None
        if state is not None:
            state.rows = after
        same = torch.equal(after.block_start, opened.rows.block_start)
        opened.rows = after
        opened.groups = [(plan, step.after) for (plan, _), step in zip(groups, steps, strict=True)]
        self._opened = opened if same else None
        return steps

    def _compute(self, opened: _OpenBlocks, packing: Packing) -> tuple[Any, _State | None]:
        """What the device found, and the state there, where a graph holds one."""
        denoise, plan = self.denoise, opened.groups[0][0]
        device, graphed = denoise.inner.device, denoise.graphed(packing)
        count = next_power(len(opened.rows)) if graphed else len(opened.rows)
        network = opened.network(packing, count, denoise.inner.shift)
        call = _DevicePass(self, plan, opened.rows.roles, packing.longest)
        kind = (opened.kind, packing.longest, denoise.version)
        if not (graphed and self._shall_capture(kind, network)):
            return run(call, [*network, *opened.state(count)], device), None
        # Passes over the same rows share a state, whether they compute a block alone or the prompt as well.
        shape = (count, rounded(opened.rows.ids.shape[1] + plan.block), opened.kind)
        state = self._states.get(shape)
        if state is None:
            if len(self._states) >= MOST_STATES:  # graphs know them by their addresses, which others may get
                self._states.clear()
                denoise.graphs.forget()
            state = self._states[shape] = _State([send(part, device) for part in opened.state(count)])
        elif state.rows is not opened.rows:
            for part, value in zip(state.tensors, opened.state(count), strict=True):
                part.copy_(value)
        state.rows = None
        return denoise.graphs(call, network, device, key=kind, state=state.tensors), state

    def _shall_capture(self, kind: Hashable, inputs: Sequence[Tensor]) -> bool:
        """Whether a graph for this kind of pass exists or shall be captured now."""
        name = (kind, tuple(tuple(part.shape) for part in inputs))
        self._times_seen[name] = self._times_seen.get(name, 0) + 1
        if len(self._times_seen) > 4096:
            self._times_seen.clear()
        return self._times_seen.get(name, 0) >= CAPTURE_AT


def _steps(opened: _OpenBlocks, found: Tensor, logits: Tensor) -> tuple[list[Step] | None, Rows]:
    """The steps of the groups from a pass's one tensor, and all rows after it.

    There are no steps if a row cannot go on: the ordinary path says why.
    """
    groups, rows, where, block = opened.groups, opened.rows, opened.where, opened.valid.shape[1]
    tokens, score, chosen = found[:, : 3 * block].split(block, 1)
    allowed, reasons, *counters = found[:, 3 * block :].unbind(1)
    if not bool(allowed.all()):
        return None, rows
    chosen, score = chosen.bool(), score.contiguous().view(torch.float64)
    changed: dict[str, Any] = dict(zip(COUNTERS, counters, strict=True))
    after = replace(rows.write(chosen, tokens), **changed)
    steps, at, read = [], 0, 0
    for plan, before in groups:
        part = slice(at, at + len(before))
        own = after if len(groups) == 1 else after.select(torch.arange(part.start, part.stop))
        proposed = Proposed(tokens[part], score[part], None, tokens[part] != NOTHING)
        mine = where[part, : before.ids.shape[1]]
        count = int(mine.sum())
        finished = finish(own, plan, reasons[part])
        steps.append(Step(before, own, proposed, chosen[part], finished, mine, logits[read : read + count]))
        at, read = part.stop, read + count
    return steps, after


@dataclass(frozen=True)
class _DevicePass:
    """What a graph captures: from the inputs of a pass to the tensor of `device_step` and the logits of the windows.

    The new tokens and counters are written into the inputs: a replay goes on from there.

    The masks of banned tokens come out too: the graph keeps them alive, so it never reads memory that `marked` freed.
    """

    owner: CapturedPass
    plan: Plan
    roles: Roles
    longest: tuple[int, int]

    def __call__(self, source: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Bans]:
        """`inputs` are the other tensors of `Packing.inputs`, and then those of `_OpenBlocks.state`."""
        owner, plan = self.owner, self.plan
        *network, ids, fixed, counters, numbers = inputs
        denoise = owner.denoise
        logits = forward(denoise.inner, denoise.store, self.longest, ids.view(-1)[source], *network)
        known = zip((*FIXED, *COUNTERS), (*fixed.unbind(), *counters.unbind()), strict=True)
        rows = Rows.of(ids, roles=self.roles, **dict(known))
        positions = window_of(rows, plan.block)
        if owner.steer is not None:
            logits = owner.steer(rows, positions, logits)
        compiled = ids.is_cuda and is_compiled(denoise.inner.body)
        # torch.compile folds the range of tokens into the hash behind random draws, where its constants overflow.
        propose = _compiled(propose_checked) if compiled and not _numbers(plan.propose) else propose_checked
        step = _compiled(device_step) if compiled else device_step
        plan = self._with_numbers(numbers.view(torch.float64))
        bans = resolved_bans(plan, self.roles, vocab=logits.shape[1], device=ids.device)
        draws = (
            rows.seed[:, None],
            rows.key[:, None],
            rows.decoded[:, None],
            positions - rows.prompt[:, None],
        )
        noise = Noise(tuple(part.expand_as(positions).reshape(-1) for part in draws), ids.device)
        entropy = plan.commit.reads_entropy
        found = propose_in_tiles(plan.propose, logits, bans, noise, entropy=entropy, call=propose)
        tokens, score = found.tokens.view(positions.shape), found.score.view(positions.shape)
        spread = None if found.entropy is None else found.entropy.view(positions.shape)
        flat, *after = step(plan, rows, tokens, score, spread)
        ids.copy_(after[0])
        counters.copy_(after[1])
        return flat, logits, bans

    def _with_numbers(self, numbers: Tensor) -> Plan:
        """The plan with tensors in place of its rules' numbers: (N, 1) in the proposal, (B, 1) in the commit."""
        columns = iter(numbers.split(1, 1))  # (B, 1) each
        plan = self.plan
        of_slots = {name: next(columns).repeat_interleave(plan.block, 0) for name in _numbers(plan.propose)}
        of_rows = {name: next(columns) for name in _numbers(plan.commit)}
        rules = {
            "propose": plan.propose.with_tensors(**of_slots),
            "commit": plan.commit.with_tensors(**of_rows),
        }
        return plan.with_tensors(**rules)
