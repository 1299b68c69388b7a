"""Proposals of a row whose text must match a constraint.

The slots of such a row are proposed together: the tokens of one pass come from one text that matches, so that any of
them may be written. At temperature 0 it is the most probable one, above it a random one. A slot's score comes from its
distribution among all texts that match, the constrained marginal, in place of the model's own distribution. Slots after
the text's end propose nothing. `voidpad.constrain.messages` has the mathematics.

Rows with the same constraint are solved together. The most probable text and its scores follow from what the device
says of classes of tokens; only draws, and the margin between two tokens, look at the vocabulary a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from voidpad.constrain import ConstraintError
from voidpad.constrain.messages import (
    FRONTIER,
    NOTHING,
    WILDCARD,
    WRITTEN,
    Beliefs,
    Floats,
    Index,
    Window,
    Windows,
    log_probabilities,
)
from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.decode.commit import COMES_LAST
from voidpad.decode.noise import Noise
from voidpad.decode.plan import Plan
from voidpad.decode.propose import Bans, Sampler, Scored, SlotProposal, TemperedProposal, divisor, penalised
from voidpad.decode.rows import Rows, send
from voidpad.decode.rules import name_of
from voidpad.roles import Roles

_FILTERED = 300.0  # taken off the log-probability of a token that top-p or top-k removes
_TILE = 1 << 25  # numbers of float64 that are looked at together: 256 MB


def check_constrained(plan: Plan, roles: Roles) -> None:
    """Refuse, by name, what cannot be had beside a constraint."""
    moves = not (plan.length.keeps_length or plan.length.appends)
    found = {
        "length": moves and f"length={name_of(plan.length)}, which moves tokens,",
        "mask_proposable": plan.propose.proposes_mask and "mask_proposable, as @authors has it,",
        "propose": not isinstance(plan.propose, Sampler) and f"propose={name_of(plan.propose)}",
        "leave_blocks": plan.leaves_blocks and "leave_blocks, as @authors has it,",
        "editing": plan.commit.edits and "editing, which replaces tokens,",
        "eos-never": not plan.fill and roles.eos in roles.ids(plan.ban) and "a plan that bans the end token",
    }
    for keyword, what in found.items():
        if what:
            raise ConstraintError(f"{what} cannot be used with a constraint; use another plan.", keyword)


def shortest_canvas(own: RowConstraint | GapConstraints, longest: int, block: int) -> int:
    """The length in whole blocks that holds the shortest text of a constraint, at most `longest`.

    Refuses a constraint whose shortest text is longer than that.
    """
    if not isinstance(own, RowConstraint):
        raise ConstraintError("constraints of gaps need a template; use a plan that fills one.", "gaps")
    if own.automaton.shortest > longest:
        raise ConstraintError(
            f"{own.constraint}: the shortest text that matches has {own.automaton.shortest} tokens, and the longest "
            f"canvas has {longest} slots; raise the canvas or the limit.",
            "canvas",
        )
    return min(-(-own.shortest // block) * block, longest)


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
class ConstrainedSlots:
    """The slots of a row, or of one gap of its template, whose text must match a constraint."""

    constraint: RowConstraint
    tokens: Tensor  # (L,) what the slots hold, MASK where nothing is written
    frontier: Tensor  # (L,) bool, the slots that may be written
    room: int  # slots by which the canvas may still grow
    roles: Roles
    columns: Tensor  # bool over all columns of the row: the same frontier

    def batch_size(self, block: int) -> int:
        """How many rows with this constraint are solved at once, at most 128 MB for each array of messages."""
        numbers = len(self.constraint.messages.source) * min(len(self.tokens), 2 * block)
        return max(1, _TILE // 2 // numbers)

    def window(self) -> Window:
        """The slots from the first masked one to the last that is written or on the frontier."""
        automaton, ends = self.constraint.automaton, self.roles.ends
        slots, frontier = self.tokens.numpy(), self.frontier.numpy()
        masked = slots == self.roles.mask
        first = int(masked.argmax())
        last = int(np.flatnonzero(frontier | ~masked)[-1]) + 1
        prefix = slots[:first].tolist()
        # The state after the written prefix; the number behind all states if the text has ended in it.
        start = automaton.states if not set(ends).isdisjoint(prefix) else automaton.state_after(prefix)
        assert start >= 0, "a written prefix that no matching text has"
        left = len(slots) - last + self.room
        final = self.constraint.messages.final(left, closed=self.constraint.closed)
        slots, frontier, masked = slots[first:last], frontier[first:last], masked[first:last]
        kind = np.where(masked, np.where(frontier, FRONTIER, WILDCARD), WRITTEN)
        return Window(kind, automaton.token_class[slots], np.isin(slots, ends), start, final)


def constrained_slots(rows: Rows, row: int, frontier: Tensor, *, limit: int) -> Iterator[ConstrainedSlots]:
    """The slots that each constraint of a row covers, if some of them are on the frontier (B, L).

    A row has one constraint, or one for each gap of its template. Its canvas may grow up to the length `limit`.
    """
    held, slots = rows.constraints[row], rows.slots[row]
    begins = slots & ~torch.nn.functional.pad(slots[:-1], (1, 0))
    run = begins.cumsum(0) - 1  # the number of the gap in which each slot is
    for number, constraint in enumerate(() if held is None else held.gaps):
        inside = slots & (run == number)
        columns = frontier[row] & inside
        if constraint is not None and columns.any():
            tokens = rows.ids[row][inside]
            room = max(0, limit - len(tokens))
            yield ConstrainedSlots(constraint, tokens, columns[inside], room, rows.roles, columns)


def propose_by_constraint(
    rows: Rows,
    plan: Plan,
    frontier: Tensor,
    logits: Tensor,
    bans: Bans,
    noise: Noise,
    penalty: Tensor | None,
) -> Iterator[tuple[Tensor, SlotProposal]]:
    """Proposals for the rows with constraints, in parts: indices among the N slots of the frontier (B, L), and what is
    proposed there.

    `logits` (N, V), `noise` and `penalty` (N,) are those of all N slots. Rows and gaps with the same constraint are
    solved together, as many as the memory allows; rows with causal blocks one by one, as a leading slot is greedy.
    """
    row, column = frontier.nonzero(as_tuple=True)
    assert isinstance(plan.propose, Sampler)  # `check_constrained` refuses others
    groups: dict[int, list[tuple[int, ConstrainedSlots]]] = {}
    for number in range(len(rows.constraints)):
        limit = int(rows.limit[number]) if plan.length.appends else 0
        for one in constrained_slots(rows, number, frontier, limit=limit):
            groups.setdefault(id(one.constraint), []).append((number, one))
    for group in groups.values():
        most = 1 if plan.causal is not None else group[0][1].batch_size(plan.block)
        for begin in range(0, len(group), most):
            batch = group[begin : begin + most]
            part = torch.cat(
                [((row == number) & one.columns[column]).nonzero()[:, 0] for number, one in batch]
            )
            at = send(part, logits.device)
            z = penalised(logits[at], rows.roles.eos, None if penalty is None else penalty[at])
            entropy, draws = plan.commit.reads_entropy, noise.select(part)
            slots = [one for _, one in batch]
            yield part, propose_constrained(plan.propose, slots, z, bans, draws, entropy=entropy)


def propose_constrained(
    rule: Sampler,
    batch: Sequence[ConstrainedSlots],
    logits: Tensor,
    bans: Bans,
    noise: Noise,
    *,
    entropy: bool,
) -> SlotProposal:
    """Tokens, scores and, if asked, entropies of the N slots on the frontiers of rows or gaps with one constraint, on
    the host, from their logits (N, V).

    A slot after the text's end has the token NOTHING, score minus infinity and infinite entropy. LLaDA scores at
    temperature 1, Dream and SDAR at the temperature at which they draw.
    """
    own, roles = batch[0].constraint, batch[0].roles
    messages, tables = own.messages, own.tables(roles, logits.device)
    windows = Windows.of([one.window() for one in batch])
    random = bool(rule.temperature) and (noise.greedy is None or not bool(noise.greedy.any()))
    size = max(1, _TILE // logits.shape[1])

    def drawn(z: Tensor) -> Tensor:
        return _drawn(rule, z, bans)

    scored = drawn if isinstance(rule, TemperedProposal) else log_probabilities

    def solved(distribution: Callable[[Tensor], Tensor]) -> tuple[Beliefs, Floats, Floats, Floats]:
        """The beliefs of the slots, and the weights, the backward sums and the marginals that follow from them."""
        parts = [tables.beliefs(distribution(tile)) for tile in logits.split(size)]
        beliefs = Beliefs.of(torch.cat(parts).cpu().numpy())
        weights = messages.weights(windows, beliefs, best=False)
        sums = messages.backward(windows, weights, best=False)
        before = messages.forward(windows, weights)
        return beliefs, weights, sums, messages.marginals(windows, weights, before, sums)

    beliefs, weights, sums, marginals = solved(scored)
    sampled = marginals
    if random:
        if drawn is not scored:
            _, weights, sums, sampled = solved(drawn)
        uniform = np.full(windows.kind.shape, 0.5)
        uniform[windows.frontier] = noise.per_path().cpu().numpy()
        path = messages.follow(windows, weights, sums, uniform)
    else:
        weights = messages.weights(windows, beliefs, best=True)
        path = messages.follow(windows, weights, messages.backward(windows, weights, best=True))
    sets = path[windows.frontier]  # (N,) the set of token classes from which the text takes each slot's token
    if not random and rule.score != "margin":
        return _from_classes(rule, own, sets, beliefs, marginals, noise, roles.eos, entropy=entropy)
    found = []
    on_device = [send(torch.from_numpy(part), logits.device) for part in (sets, marginals, sampled)]
    pieces = (part.split(size) for part in (logits, *on_device))
    for z, chosen, share, draw_share, draws in zip(*pieces, noise.split(size), strict=True):
        log_p = scored(z)
        wish = drawn(z) + draws.gumbel(z.shape[1]) if random else log_p
        tokens = tables.tokens(chosen, wish)
        p = tables.distribution(share, log_p)
        judged, nothing = Scored(tokens, p, p.argmax(1) if random else tokens), tokens == NOTHING
        proposal = [tokens.double(), judged.score(rule.score, draws).masked_fill(nothing, -torch.inf)]
        if entropy:
            q = p if sampled is marginals else tables.distribution(draw_share, drawn(z))
            proposal.append(judged.entropy(q).masked_fill(nothing, torch.inf))
        found.append(torch.stack(proposal))
    tokens, score, *spread = torch.cat(found, 1).cpu()
    return SlotProposal(tokens.long(), score, spread[0] if entropy else None)


def _from_classes(
    rule: Sampler,
    own: RowConstraint,
    path: Index,
    beliefs: Beliefs,
    marginals: Floats,
    noise: Noise,
    eos: int,
    *,
    entropy: bool,
) -> SlotProposal:
    """The most probable tokens of these sets (N,), their scores and entropies, without another look at the vocabulary.

    The scores are those that `Scored` would give by the constrained marginals of all tokens. The marginal of a token is
    the factor of its class (`marginals`, in log space) times the model's probability of the token.
    """
    tokens, column = own.messages.best_tokens(path, beliefs, eos)
    nothing = torch.from_numpy(tokens == NOTHING)
    best = marginals.copy()
    best[:, :-2] += beliefs.best
    sure = torch.from_numpy(np.exp(best[np.arange(len(path)), column]))
    misleads = (sure < torch.from_numpy(np.exp(best.max(1, initial=-np.inf)))) | (sure == 0)
    factor, ends = np.exp(marginals[:, :-2]), np.exp(marginals[:, -2:])
    spread = (factor * (beliefs.information + marginals[:, :-2] * np.exp(beliefs.total))).sum(1)
    certainty = torch.from_numpy(spread + (ends * marginals[:, -2:]).sum(1))  # minus the entropy
    if rule.score == "confidence":
        score = sure
    elif rule.score == "random":
        score = noise.per_slot().cpu()
    else:
        score = torch.where(misleads, sure - COMES_LAST, certainty)
    spreads = (-certainty).masked_fill(misleads | nothing, torch.inf) if entropy else None
    return SlotProposal(torch.from_numpy(tokens), score.masked_fill(nothing, -torch.inf), spreads)


def _drawn(rule: Sampler, logits: Tensor, bans: Bans) -> Tensor:
    """The distributions (N, V) from which tokens are drawn, in log space: tempered, and with a penalty on tokens that
    top-p or top-k removes. It is so large that such a token is taken only where no text that matches can do without it.
    """
    z = logits.double() / divisor(rule.temperature)
    kept = rule.filtered(z, rule.choice_ban(bans)) if isinstance(rule, TemperedProposal) else z
    if kept is z:
        return log_probabilities(z)
    last_resort = log_probabilities(z).clamp(min=-_FILTERED) - _FILTERED
    return torch.where(kept == -torch.inf, last_resort, log_probabilities(kept))
