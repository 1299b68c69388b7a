"""Decoding under a constraint: the most probable text that matches, exact draws, and the certainty of each slot.

A window is the open block of a row. Each of its slots is written (it holds a token), on the frontier (it is masked and
the model gives a distribution for it), or a wildcard (masked, without a distribution). The automaton reads the window
from left to right, beginning in the state after the text before it; behind the window only what can still follow
counts. One more state, `end`, is entered by the end token and never left: a slot in `end` weighs as much as the model's
belief that nothing stands there, which is what keeps short texts from looking cheap.

Messages are sums (or maxima) over all texts of the product of the slots' probabilities: `backward` from the right,
`forward` from the left. All of it is computed in float64 and in log space, with NEVER in place of minus infinity, in
a fixed order and with shapes that depend on the automaton's size alone, so that it can be part of a captured graph.

Shapes: B rows, W slots, V tokens, C classes, S states, E edges, U sets of classes. The state `end` has number S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from voidpad.constrain.constraint import TokenAutomaton

NEVER = -1e18  # the logarithm of zero; finite, so that differences of such numbers are numbers
POSSIBLE = -1e17  # whatever has a weight above this can happen
FLOOR = -600.0  # no token is less probable than exp(FLOOR): sums of probabilities stay above zero in float64
OUTSIDE, WRITTEN, FRONTIER, WILDCARD = range(
    4
)  # kinds of slots; those outside a row's window are passed over
NOTHING = -1  # the token of a slot that proposes none


# Reductions in a fixed order


@dataclass(frozen=True)
class Segments:
    """Which values of a row are reduced together, as a tree: each level gathers values in groups of a fixed width."""

    levels: tuple[
        Tensor, ...
    ]  # (B, groups, width) indices into the values of the level before, one past them for none

    def maximum(self, values: Tensor) -> Tensor:
        """The maxima (B, ..., n) of values (B, ..., N)."""
        for level in self.levels:
            values = _grouped(values, level, NEVER).amax(-1)
        return values

    def total(self, values: Tensor) -> Tensor:
        """The sums (B, ..., n) of values (B, ..., N)."""
        for level in self.levels:
            values = _halved(_grouped(values, level, 0.0))
        return values

    def log_total(self, values: Tensor) -> Tensor:
        """The logarithms of sums (B, ..., n) of exponentials of values (B, ..., N)."""
        for level in self.levels:
            values = log_sum(_grouped(values, level, NEVER))
        return values


def _grouped(values: Tensor, level: Tensor, nothing: float) -> Tensor:
    groups: Tensor = take(pad(values, (0, 1), value=nothing), level.flatten(1))
    return groups.reshape(*groups.shape[:-1], *level.shape[1:])


def take(values: Tensor, index: Tensor) -> Tensor:
    """values[b, ..., index[b, n]] as (B, ..., n), for values (B, ..., N) and indices (B, n)."""
    if values.dim() == 3:
        index = index[:, None].expand(-1, values.shape[1], -1)
    return values.gather(-1, index)


def _halved(values: Tensor) -> Tensor:
    """The sum over the last dimension, a power of two, in an order that no shape or device changes."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values.select(-1, 0)


def log_sum(values: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials over the last dimension, a power of two."""
    top = values.amax(-1, keepdim=True)
    return top[..., 0] + _halved((values - top).exp()).log()


def _wide(values: Tensor) -> Tensor:
    """`log_sum` over a last dimension of any size."""
    size = values.shape[-1]
    return log_sum(pad(values, (0, (1 << (size - 1).bit_length()) - size), value=NEVER))


def _levels(segment: NDArray[np.int64], count: int, width: int, depth: int) -> list[NDArray[np.int64]]:
    """The tree that reduces values by segment: `depth` levels (groups, width), -1 for no value."""
    levels = []
    for level in range(depth):
        order = np.flatnonzero(segment >= 0)
        order = order[np.argsort(segment[order], kind="stable")]
        members = segment[order]
        sizes = np.bincount(members, minlength=count)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        groups = np.ones(count, np.int64) if level == depth - 1 else -(-sizes // width)
        first = np.cumsum(groups) - groups
        index = np.full((int(groups.sum()), width), -1, np.int64)
        index[first[members] + place // width, place % width] = order
        levels.append(index)
        segment = np.repeat(np.arange(count), groups)
    return levels


def _segments(
    parts: Sequence[NDArray[np.int64]],
    counts: Sequence[int],
    values: int,
    count: int,
    width: int,
    device: torch.device,
) -> Segments:
    """Segments of several rows, each with its own segment numbers; `values` and `count` are the padded sizes."""
    longest = max((int(np.bincount(p[p >= 0], minlength=1).max()) for p in parts), default=1)
    depth = 1
    while width**depth < longest:
        depth += 1
    trees = [_levels(part, own, width, depth) for part, own in zip(parts, counts, strict=True)]
    levels = []
    for number in range(depth):
        rows = count if number == depth - 1 else max(len(tree[number]) for tree in trees)
        index = np.full((len(trees), rows, width), -1, np.int64)
        for row, tree in enumerate(trees):
            index[row, : len(tree[number])] = tree[number]
        index[index < 0] = values
        levels.append(torch.from_numpy(index).to(device))
        values = rows
    return Segments(tuple(levels))


# Automata as tensors


@dataclass(frozen=True)
class Tables:
    """The automata of B rows as tensors of common sizes. Number C is no class, U is a set that never fits."""

    token_class: Tensor  # (B, V)
    tokens_by_class: Segments  # V -> C
    items: Tensor  # (B, I) the classes of all sets, one after the other
    item_set: Tensor  # (B, I) the set of each of them
    items_by_set: Segments  # I -> U
    items_by_class: Segments  # I -> C
    member: Tensor  # (B, U + 1, C + 1) bool, whether a class is in a set
    source: Tensor  # (B, E)
    target: Tensor  # (B, E)
    edge_set: Tensor  # (B, E)
    first_edge: Tensor  # (B, S + 1) edges are sorted by source
    most_edges: int  # of one state
    edges_by_source: Segments  # E -> S
    edges_by_target: Segments  # E -> S
    edges_by_set: Segments  # E -> U
    accepting: Tensor  # (B, S) bool
    states: int

    def __len__(self) -> int:
        return len(self.token_class)


def tables_of(
    automata: Sequence[TokenAutomaton], device: torch.device | str = "cpu", *, buckets: bool = False
) -> Tables:
    """The tensors of these rows' automata; with `buckets`, sizes are rounded up to powers of two."""
    device = torch.device(device)

    def size(numbers: list[int]) -> int:
        largest = max(max(numbers), 1)
        return 1 << (largest - 1).bit_length() if buckets else largest

    vocabulary = max(len(one.token_class) for one in automata)
    states, classes = size([one.states for one in automata]), size([one.classes for one in automata])
    sets, edges = (
        size([len(one.set_start) - 1 for one in automata]),
        size([len(one.source) for one in automata]),
    )
    items, most = size([len(one.set_class) for one in automata]), 1

    def filled(length: int, value: int, rows: Sequence[NDArray[np.int32]]) -> Tensor:
        full = np.full((len(rows), length), value, np.int64)
        for number, row in enumerate(rows):
            full[number, : len(row)] = row
        return torch.from_numpy(full).to(device)

    def segments(rows: Sequence[NDArray[np.int32]], values: int, count: int, width: int) -> Segments:
        parts = [row.astype(np.int64) for row in rows]
        return _segments(parts, [count] * len(parts), values, count, width, device)

    token_class = [np.where(one.token_class < 0, classes, one.token_class) for one in automata]
    item_set = [
        np.repeat(np.arange(len(one.set_start) - 1), np.diff(one.set_start)).astype(np.int32)
        for one in automata
    ]
    member = np.zeros((len(automata), sets + 1, classes + 1), bool)
    first_edge = np.zeros((len(automata), states + 1), np.int64)
    accepting = np.zeros((len(automata), states), bool)
    for row, one in enumerate(automata):
        member[row, item_set[row], one.set_class] = True
        starts = np.searchsorted(one.source, np.arange(states + 1))
        first_edge[row] = starts
        most = max(most, int(np.diff(starts).max()))
        accepting[row, : one.states] = one.accepting
    return Tables(
        token_class=filled(vocabulary, classes, token_class),
        tokens_by_class=segments([one.token_class for one in automata], vocabulary, classes, 64),
        items=filled(items, classes, [one.set_class for one in automata]),
        item_set=filled(items, sets, item_set),
        items_by_set=segments(item_set, items, sets, 8),
        items_by_class=segments([one.set_class for one in automata], items, classes, 8),
        member=torch.from_numpy(member).to(device),
        source=filled(edges, 0, [one.source for one in automata]),
        target=filled(edges, 0, [one.target for one in automata]),
        edge_set=filled(edges, sets, [one.edge_set for one in automata]),
        first_edge=torch.from_numpy(first_edge).to(device),
        most_edges=size([most]),
        edges_by_source=segments([one.source for one in automata], edges, states, 8),
        edges_by_target=segments([one.target for one in automata], edges, states, 8),
        edges_by_set=segments([one.edge_set for one in automata], edges, sets, 16),
        accepting=torch.from_numpy(accepting).to(device),
        states=states,
    )


# One window


@dataclass(frozen=True)
class Window:
    """What the automata read: slots, the state before them, and what may follow them."""

    kind: Tensor  # (B, W) OUTSIDE, WRITTEN, FRONTIER or WILDCARD
    tokens: Tensor  # (B, W) the written tokens; anything elsewhere
    ended: Tensor  # (B, W) bool, written slots that hold an end token
    start: Tensor  # (B,) the state before the first slot; S if the text has ended
    final: Tensor  # (B, S + 1) 0 for the states that may stand after the last slot, NEVER for the others


def final_weights(automaton: TokenAutomaton, states: int, *, left: int, closed: bool = False) -> Tensor:
    """What may follow a window (S + 1,): 0 for states from which the text can be completed in time, else NEVER.

    `left` slots follow. A text may end before them; in a closed window, such as a gap in a fixed text, it must fill
    them exactly.
    """
    fits = automaton.completes_in(left) if closed else automaton.distance <= left
    weights = torch.full((states + 1,), NEVER, dtype=torch.float64)
    weights[: automaton.states][torch.from_numpy(np.asarray(fits))] = 0.0
    weights[states] = NEVER if closed else 0.0
    return weights


@dataclass(frozen=True)
class Beliefs:
    """The model's distributions at the slots of a window, in log space, as far as the automata tell tokens apart."""

    total: Tensor  # (B, W, C) the probability of each class
    best: Tensor  # (B, W, C) that of its most probable token
    end: Tensor  # (B, W) that of all end tokens
    tail: Tensor  # (B, W) that of all tokens that say that nothing stands here: end tokens and padding


def beliefs_of(tables: Tables, log_p: Tensor, *, ends: Tensor, padding: Tensor) -> Beliefs:
    """Reduce distributions (B, W, V), in log space, to classes. `ends` and `padding` are token ids.

    The distributions are the model's, before any token is banned: a slot where the model wants padding must look
    unlikely as text.
    """
    p = log_p.exp()
    logs = [
        tables.tokens_by_class.total(p),
        _sum_of(p, ends),
        _sum_of(p, torch.cat([ends, padding])),
    ]
    total, end, tail = (part.log().clamp(min=NEVER) for part in logs)
    return Beliefs(total, tables.tokens_by_class.maximum(log_p), end, tail)


def _sum_of(p: Tensor, tokens: Tensor) -> Tensor:
    values = p.index_select(-1, tokens)
    size = values.shape[-1]
    return _halved(pad(values, (0, (1 << max(size - 1, 0).bit_length()) - size)))


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax in float64 with a finite floor."""
    return logits.double().log_softmax(-1).clamp(min=FLOOR)


@dataclass(frozen=True)
class Weights:
    """What each slot adds to a text's weight (logarithms): per set of classes, for the end token, and in `end`."""

    sets: Tensor  # (B, W, U + 1)
    end: Tensor  # (B, W)
    tail: Tensor  # (B, W)


def slot_weights(tables: Tables, window: Window, beliefs: Beliefs, *, best: bool) -> Weights:
    """The weights of a window's slots: sums over tokens, or, with `best`, the most probable token of each set.

    A written slot allows its own token only; a wildcard allows everything.
    """
    per_class = pad(beliefs.best if best else beliefs.total, (0, 1), value=NEVER)
    per_item = take(per_class, tables.items)
    frontier = tables.items_by_set.maximum(per_item) if best else tables.items_by_set.log_total(per_item)
    written_class = take(tables.token_class, window.tokens.clamp(min=0))  # (B, W)
    index = written_class[:, None].expand(-1, tables.member.shape[1], -1)
    allowed = tables.member.gather(2, index).transpose(1, 2) & ~window.ended[..., None]  # (B, W, U + 1)
    is_written, is_frontier = window.kind == WRITTEN, window.kind == FRONTIER
    zero, never = frontier.new_zeros(()), frontier.new_full((), NEVER)
    free = pad(torch.zeros_like(frontier), (0, 1), value=NEVER)
    sets = torch.where(
        is_frontier[..., None],
        pad(frontier, (0, 1), value=NEVER),
        torch.where(is_written[..., None], torch.where(allowed, zero, never), free),
    )
    held = torch.where(is_written & ~window.ended, never, zero)
    end = torch.where(is_frontier, beliefs.end, held)
    tail = torch.where(is_frontier, beliefs.tail, zero)
    return Weights(sets, end, tail)


def backward(tables: Tables, window: Window, weights: Weights, *, best: bool) -> Tensor:
    """The weight (B, W + 1, S + 1) of completing the text from each state before each slot, and after the last."""
    reduce = tables.edges_by_source.maximum if best else tables.edges_by_source.log_total
    join: Callable[[Tensor, Tensor], Tensor] = torch.maximum if best else torch.logaddexp
    following = window.final
    found = [following]
    for slot in range(window.kind.shape[1] - 1, -1, -1):
        edges = take(weights.sets[:, slot], tables.edge_set) + take(following, tables.target)
        end = following[:, -1]
        stops = (weights.end[:, slot] + end)[:, None].masked_fill(~tables.accepting, NEVER)
        stays = weights.tail[:, slot] + end
        values = torch.cat([join(reduce(edges), stops), stays[:, None]], 1)
        following = _by_kind(window.kind[:, slot], values, following)
        found.append(following)
    return torch.stack(found[::-1], 1)


def forward(tables: Tables, window: Window, weights: Weights) -> Tensor:
    """The weight (B, W + 1, S + 1) of arriving in each state before each slot, and after the last."""
    states = tables.states
    number = torch.arange(states + 1, device=window.kind.device)
    before = torch.where(number == window.start[:, None], 0.0, NEVER).double()
    found = [before]
    for slot in range(window.kind.shape[1]):
        edges = take(weights.sets[:, slot], tables.edge_set) + take(before, tables.source)
        stops = _wide(before[:, :states].masked_fill(~tables.accepting, NEVER)) + weights.end[:, slot]
        stays = before[:, states] + weights.tail[:, slot]
        values = torch.cat(
            [tables.edges_by_target.log_total(edges), torch.logaddexp(stops, stays)[:, None]], 1
        )
        before = _by_kind(window.kind[:, slot], values, before)
        found.append(before)
    return torch.stack(found, 1)


def _by_kind(kind: Tensor, values: Tensor, unchanged: Tensor) -> Tensor:
    """A wildcard tells only what is possible; a slot outside the window changes nothing."""
    possible = torch.where(values > POSSIBLE, 0.0, NEVER).double()
    values = torch.where((kind == WILDCARD)[:, None], possible, values)
    return torch.where((kind == OUTSIDE)[:, None], unchanged, values)


@dataclass(frozen=True)
class Path:
    """One text that matches: what it does at each slot of the window."""

    sets: (
        Tensor  # (B, W) the set of classes from which the slot's token comes; U at the end token and after it
    )
    ends: Tensor  # (B, W) bool, slots at which the text ends: an end token is to be written there


def follow(
    tables: Tables, window: Window, weights: Weights, messages: Tensor, uniform: Tensor | None = None
) -> Path:
    """The path of the heaviest text, given messages of maxima; or, with uniform numbers (B, W), a random path.

    `messages` come from `backward` with the same weights. A random path, given messages of sums, is an exact draw.
    """
    state = window.start
    rows = torch.arange(tables.most_edges, device=state.device)
    last = tables.source.shape[1] - 1
    none = tables.member.shape[1] - 1
    accepting = pad(tables.accepting, (0, 1), value=False)
    first_edge = pad(tables.first_edge, (0, 1), value=last + 1)  # `end` has no edges
    sets, ends = [], []
    for slot in range(window.kind.shape[1]):
        following = messages[:, slot + 1]
        first, stop = (first_edge.gather(1, (state + more)[:, None]) for more in (0, 1))
        edge = first + rows
        there = edge < stop
        edge = edge.clamp(max=last)
        kinds = tables.edge_set.gather(1, edge)
        target = tables.target.gather(1, edge)
        options = weights.sets[:, slot].gather(1, kinds) + following.gather(1, target)
        options = options.masked_fill(~there, NEVER)
        has_ended = state == tables.states
        may_end = accepting.gather(1, state[:, None])[:, 0]
        leave = torch.where(
            has_ended, weights.tail[:, slot], weights.end[:, slot].masked_fill(~may_end, NEVER)
        )
        leave = torch.where(has_ended | may_end, leave + following[:, -1], NEVER)
        options = torch.cat([options, leave[:, None]], 1)
        pick = (options.argmax(1) if uniform is None else _drawn(options, uniform[:, slot]))[:, None]
        ended = pick[:, 0] == tables.most_edges
        chosen = pad(kinds, (0, 1), value=none).gather(1, pick)[:, 0]
        arrived = pad(target, (0, 1), value=tables.states).gather(1, pick)[:, 0]
        outside = window.kind[:, slot] == OUTSIDE
        sets.append(torch.where(outside, none, chosen))
        ends.append(ended & ~has_ended & ~outside)
        state = torch.where(outside, state, arrived)
    return Path(torch.stack(sets, 1), torch.stack(ends, 1))


def _drawn(options: Tensor, uniform: Tensor) -> Tensor:
    """An index (B,) drawn in proportion to the exponentials of options (B, n), by inversion."""
    share = (options - options.amax(1, keepdim=True)).exp()
    reached = share.cumsum(1)
    bar = uniform.clamp(max=1 - 1e-12)[:, None] * reached[:, -1:]
    return (reached > bar).int().argmax(1)  # the first that passes the bar adds something, so it is possible


@dataclass(frozen=True)
class Marginals:
    """The distribution of each slot among all texts that match, in log space."""

    classes: Tensor  # (B, W, C + 1) what to add to a token's log-probability, by its class
    end: Tensor  # (B, W) the text ends here: the end token
    after: Tensor  # (B, W) the text has ended before

    def tokens(self, log_p: Tensor, token_class: Tensor, *, eos: int, mask: int) -> Tensor:
        """The distributions as probabilities (B, W, V). The end token stands at `eos`, `after` at `mask`."""
        p = (log_p + take(self.classes, token_class)).exp()
        # Ids of roles have no class, so their columns are free.
        p = p.select_scatter(self.end.exp(), -1, eos)
        return p.select_scatter(self.after.exp(), -1, mask)


def marginals(tables: Tables, weights: Weights, before: Tensor, after: Tensor) -> Marginals:
    """Each slot's distribution given the constraint, from forward and backward sums. It means something on the
    frontier only."""
    slots = weights.end.shape[1]
    arrive, leave = before[:, :-1], after[:, 1:]
    total = _wide(arrive + after[:, :-1])  # (B, W), the same at every slot but for rounding and wildcards
    parts = []
    step = max(1, (1 << 22) // (tables.source.shape[1] * len(tables)))  # slots at a time, for memory
    for at in range(0, slots, step):
        edges = take(arrive[:, at : at + step], tables.source) + take(leave[:, at : at + step], tables.target)
        per_set = pad(tables.edges_by_set.log_total(edges), (0, 1), value=NEVER)
        parts.append(tables.items_by_class.log_total(take(per_set, tables.item_set)))
    per_class = pad(torch.cat(parts, 1), (0, 1), value=NEVER) - total[..., None]
    can_end = _wide(arrive[..., :-1].masked_fill(~tables.accepting[:, None], NEVER))
    end = can_end + weights.end + leave[..., -1] - total
    over = arrive[..., -1] + weights.tail + leave[..., -1] - total
    return Marginals(per_class, end, over)


def path_tokens(tables: Tables, path: Path, scores: Tensor, *, eos: int) -> Tensor:
    """The tokens (B, W) of a path: the one with the highest score (B, W, V) among those that take its step.

    `eos` where the text ends, NOTHING where it has ended before.
    """
    index = path.sets[:, :, None].expand(-1, -1, tables.member.shape[2])
    allowed = tables.member.gather(1, index)  # (B, W, C + 1)
    fits = take(allowed, tables.token_class)
    best = scores.masked_fill(~fits, -torch.inf).argmax(-1)
    none = path.sets == tables.member.shape[1] - 1
    best = torch.where(none, NOTHING, best)
    return torch.where(path.ends, eos, best)


def best_proposal(
    tables: Tables, window: Window, logits: Tensor, *, ends: Tensor, padding: Tensor, eos: int
) -> tuple[Tensor, Tensor]:
    """The tokens (B, W) of the most probable text and their constrained marginals (B, W), from logits (B, W, V).

    It is what a proposal at temperature 0 with the score `confidence` needs, with static shapes and without reading the
    device. Tokens mean something on the frontier only; NOTHING, with chance 0, where the text has ended before.
    """
    log_p = log_probabilities(logits)
    beliefs = beliefs_of(tables, log_p, ends=ends, padding=padding)
    best = slot_weights(tables, window, beliefs, best=True)
    path = follow(tables, window, best, backward(tables, window, best, best=True))
    tokens = path_tokens(tables, path, log_p, eos=eos)
    sums = slot_weights(tables, window, beliefs, best=False)
    found = marginals(tables, sums, forward(tables, window, sums), backward(tables, window, sums, best=False))
    place = tokens.clamp(min=0)
    own_class = take(tables.token_class, place)
    chance = log_p.gather(2, place[..., None])[..., 0] + found.classes.gather(2, own_class[..., None])[..., 0]
    chance = torch.where(path.ends, found.end, chance).exp()
    return tokens, chance.masked_fill(tokens == NOTHING, 0.0)
