"""Proposals of a row whose text must match a constraint.

The slots of such a row are proposed together: the tokens of one pass come from one text that matches, so that any of
them may be written. At temperature 0 it is the most probable one, above it a random one. A slot's score comes from its
distribution among all texts that match, the constrained marginal, in place of the model's own distribution. Slots after
the text's end propose nothing. `voidpad.constrain.messages` has the mathematics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voidpad.constrain import ConstraintError
from voidpad.constrain.host import HostBeliefs, HostWeights, HostWindow
from voidpad.constrain.messages import (
    FRONTIER,
    NEVER,
    WILDCARD,
    WRITTEN,
    Marginals,
    Path,
    Tables,
    beliefs_of,
    final_weights,
    log_probabilities,
    path_tokens,
)
from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.decode.canvas import Canvas, send
from voidpad.decode.noise import Noise
from voidpad.decode.plan import Plan
from voidpad.decode.propose import (
    NOTHING,
    Bans,
    Sampler,
    Scored,
    SlotProposal,
    TemperedProposal,
    divisor,
    index,
)
from voidpad.decode.rules import name_of
from voidpad.roles import Roles

_FILTERED = 300.0  # taken off the log-probability of a token that top-p or top-k removes


def check_constrained(plan: Plan, roles: Roles) -> None:
    """Refuse, by name, what cannot be had beside a constraint."""
    if not (plan.length.settles_first or plan.length.appends):
        raise ConstraintError(
            f"length={name_of(plan.length)} moves tokens, so it cannot be used with a constraint; use another plan.",
            "length",
        )
    if plan.propose.proposes_mask:
        raise ConstraintError(
            "mask_proposable cannot be used with a constraint; use a plan without @authors.",
            "mask_proposable",
        )
    if not isinstance(plan.propose, Sampler):
        raise ConstraintError(
            f"propose={name_of(plan.propose)} cannot be used with a constraint; use another plan.", "propose"
        )
    if plan.leaves_blocks:
        raise ConstraintError(
            "leave_blocks cannot be used with a constraint; use a plan without @authors.", "leave_blocks"
        )
    if roles.eos in roles.ids(plan.ban) and not plan.fill:
        raise ConstraintError(
            "eos-never bans the end token, which a constraint needs; use another plan.", "eos-never"
        )


def check_length(own: RowConstraint, longest: int) -> None:
    """Refuse a constraint whose shortest text does not fit the longest canvas that the row may have."""
    if own.automaton.shortest > longest:
        raise ConstraintError(
            f"{own.constraint}: the shortest text that matches has {own.automaton.shortest} tokens, and the longest "
            f"canvas has {longest} slots; raise the canvas or the limit.",
            "canvas",
        )


def check_gaps(own: RowConstraint | GapConstraints, sizes: Sequence[int]) -> None:
    """Refuse constraints that do not fit a template's gaps, which have these numbers of slots."""
    if not isinstance(own, GapConstraints) or len(own.gaps) != len(sizes):
        raise ConstraintError(
            f"a template with {len(sizes)} gaps needs a constraint, or None, for each.", "gaps"
        )
    for one, size in zip(own.gaps, sizes, strict=True):
        if one is not None and not (one.closed and one.automaton.completes_in(size)[0]):
            raise ConstraintError(
                f"{one.constraint}: no text that matches has exactly {size} tokens, as the gap has slots; change the "
                "size of the gap.",
                "gaps",
            )


@dataclass(frozen=True)
class Place:
    """Where a constrained row stands: its slots, those on the frontier, and the slots that may come behind them."""

    slots: Tensor  # (L,) tokens of the canvas, MASK where nothing is written
    frontier: Tensor  # (L,) bool
    room: int  # slots by which the canvas may still grow
    roles: Roles

    def window(self, own: RowConstraint) -> tuple[HostWindow, NDArray[np.intp]]:
        """The slots from the first masked one to the last that is written or on the frontier, and the numbers of
        those on the frontier among them."""
        automaton, ends = own.automaton, self.roles.ends
        slots, frontier = self.slots.cpu().numpy(), self.frontier.cpu().numpy()
        masked = slots == self.roles.mask
        first = int(masked.argmax())
        last = int(np.flatnonzero(frontier | ~masked)[-1]) + 1
        prefix = slots[:first].tolist()
        start = automaton.states if not set(ends).isdisjoint(prefix) else automaton.state_after(prefix)
        assert start >= 0, "a written prefix that no matching text has"
        left = len(slots) - last + self.room
        slots, frontier, masked = slots[first:last], frontier[first:last], masked[first:last]
        kind = np.where(masked, np.where(frontier, FRONTIER, WILDCARD), WRITTEN)
        final = final_weights(automaton, automaton.states, left=left, closed=own.closed).numpy()
        window = HostWindow(kind, automaton.token_class[slots], np.isin(slots, ends), start, final)
        return window, np.flatnonzero(frontier)


def places_of(
    own: RowConstraint | GapConstraints, canvas: Canvas, row: int, frontier: Tensor, *, limit: int
) -> Iterator[tuple[RowConstraint, Place, Tensor]]:
    """The constraints of a row with their places, and the frontier's columns (L,) that each of them governs.

    `frontier` is that of all rows (B, L); `limit` is the length up to which the row's canvas may grow.
    """
    columns = canvas.slots[row]
    if isinstance(own, RowConstraint):
        slots = canvas.ids[row][columns]
        room = max(0, limit - len(slots))
        yield own, Place(slots, frontier[row][columns], room, canvas.roles), frontier[row]
        return
    number = (columns & ~torch.nn.functional.pad(columns[:-1], (1, 0))).cumsum(0) - 1  # of the gap
    for gap, one in enumerate(own.gaps):
        inside = columns & (number == gap)
        open_slots = frontier[row] & inside
        if one is not None and bool(open_slots.any()):
            yield one, Place(canvas.ids[row][inside], frontier[row][inside], 0, canvas.roles), open_slots


def propose_constrained(
    rule: Sampler,
    own: RowConstraint,
    place: Place,
    logits: Tensor,
    bans: Bans,
    noise: Noise,
    *,
    entropy: bool,
) -> SlotProposal:
    """Tokens, scores and, if asked, entropies of the frontier's slots of one row, from their logits (N, V).

    A slot after the text's end has the token NOTHING, score minus infinity and infinite entropy. Distributions over the
    vocabulary are made twice, in tiles of at most 256 MB: once for the messages, once for tokens and scores.
    """
    roles, tables, device = place.roles, own.tables(logits.device), logits.device
    window, at = place.window(own)
    random = bool(rule.temperature) and (noise.greedy is None or not bool(noise.greedy.any()))
    size = max(1, (1 << 25) // logits.shape[1])
    tiles = [_Distributions.of(rule, part, bans, random=random) for part in logits.split(size)]

    def sums(name: str) -> _Sums:
        parts = [_reduced(tables, getattr(tile, name)(), roles) for tile in tiles]
        return _Sums.of(own, window, at, torch.cat(parts).cpu().numpy(), device)

    scored = sums("scored")
    drawn = sums("drawn") if random and tiles[0].two else scored
    if random:
        uniform = np.full(len(window.kind), 0.5)
        uniform[at] = noise.per_path().cpu().numpy()
        path = own.host.follow(window, drawn.weights, drawn.messages, uniform)
    else:
        best = own.host.weights(window, scored.beliefs, best=True)
        path = own.host.follow(window, best, own.host.backward(window, best, best=True))
    sets, ends = (send(torch.from_numpy(part[at]), device)[None] for part in path)
    found: list[SlotProposal] = []
    for number, (tile, draws) in enumerate(zip(tiles, noise.split(size), strict=True)):
        part = slice(number * size, number * size + len(tile.logits))
        log_p = tile.scored()
        wish = tile.drawn() + draws.gumbel(log_p.shape[1]) if random else log_p
        tokens = path_tokens(tables, Path(sets[:, part], ends[:, part]), wish[None], eos=roles.eos)[0]
        p = scored.distribution(tables, log_p, part, roles)
        judged = Scored(tokens, p, p.argmax(1) if random else tokens)
        nothing = tokens == NOTHING
        score = judged.score(rule.score, draws).masked_fill(nothing, -torch.inf)
        spread = None
        if entropy:
            sampled = p if drawn is scored else drawn.distribution(tables, tile.drawn(), part, roles)
            spread = judged.entropy(sampled).masked_fill(nothing, torch.inf)
        found.append(SlotProposal(tokens, score, spread))
    return SlotProposal(
        torch.cat([one.tokens for one in found]),
        torch.cat([one.score for one in found]),
        torch.cat([one.entropy for one in found if one.entropy is not None]) if entropy else None,
    )


@dataclass(frozen=True)
class _Distributions:
    """The distributions of some slots (N, V), in log space: by which tokens are scored, and from which they are drawn.

    LLaDA scores at temperature 1, Dream and SDAR at the temperature at which they draw.
    """

    rule: Sampler
    logits: Tensor
    bans: Bans
    two: bool  # whether the two differ

    @classmethod
    def of(cls, rule: Sampler, logits: Tensor, bans: Bans, *, random: bool) -> _Distributions:
        return cls(rule, logits, bans, random and not isinstance(rule, TemperedProposal))

    def scored(self) -> Tensor:
        return log_probabilities(self.logits) if not isinstance(self.rule, TemperedProposal) else self.drawn()

    def drawn(self) -> Tensor:
        """Tempered, and with a penalty on tokens that top-p or top-k removes. It is so large that such a token is
        taken only where no text that matches can do without it."""
        z = self.logits.double() / divisor(self.rule.temperature)
        if not isinstance(self.rule, TemperedProposal):
            return log_probabilities(z)
        kept = self.rule.filtered(z, self.rule.choice_ban(self.bans))
        if kept is z:
            return log_probabilities(z)
        last_resort = log_probabilities(z).clamp(min=-_FILTERED) - _FILTERED
        return torch.where(kept == -torch.inf, last_resort, log_probabilities(kept))


@dataclass(frozen=True)
class _Sums:
    """Sums over all texts that match: what they were made from, the messages, and the frontier's distributions."""

    beliefs: HostBeliefs
    weights: HostWeights
    messages: NDArray[np.float64]
    marginals: Marginals  # of the N slots of the frontier, on the device

    @classmethod
    def of(
        cls,
        own: RowConstraint,
        window: HostWindow,
        at: NDArray[np.intp],
        reduced: NDArray[np.float64],
        device: torch.device,
    ) -> _Sums:
        classes = own.automaton.classes
        beliefs = HostBeliefs(
            reduced[:, :classes], reduced[:, classes : 2 * classes], reduced[:, -2], reduced[:, -1]
        )
        weights = own.host.weights(window, beliefs, best=False)
        messages = own.host.backward(window, weights, best=False)
        per_class, end, after = own.host.marginals(weights, own.host.forward(window, weights), messages)
        nothing = np.full((len(at), 1), NEVER)  # for tokens without a class
        parts = (np.concatenate([per_class[at], nothing], 1), end[at], after[at])
        found = Marginals(*(send(torch.from_numpy(part), device)[None] for part in parts))
        return cls(beliefs, weights, messages, found)

    def distribution(self, tables: Tables, log_p: Tensor, part: slice, roles: Roles) -> Tensor:
        """The constrained marginals (N, V) of some slots, whose distributions in log space are log_p (N, V)."""
        found = self.marginals
        some = Marginals(found.classes[:, part], found.end[:, part], found.after[:, part])
        return some.tokens(log_p[None], tables.token_class, eos=roles.eos, mask=roles.mask)[0]


def _reduced(tables: Tables, log_p: Tensor, roles: Roles) -> Tensor:
    """What distributions (N, V) say: totals and maxima of the classes, the end and the tail, (N, 2 C + 2)."""
    padding = {*roles.rainbow, *(() if roles.void is None else (roles.void,))} - set(roles.ends)
    ends, rest = (index(tuple(sorted(ids)), log_p.device) for ids in (roles.ends, padding))
    found = beliefs_of(tables, log_p[None], ends=ends, padding=rest.long())
    return torch.cat([found.total[0], found.best[0], found.end[0, :, None], found.tail[0, :, None]], 1)
