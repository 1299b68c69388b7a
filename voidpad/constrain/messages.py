"""Decoding under a constraint: the most probable text that matches, exact draws, and the certainty of each slot.

A window is a stretch of a row's slots. Each slot is written (it holds a token), on the frontier (it is masked and the
model gives a distribution for it), or a wildcard (masked, without a distribution). The automaton reads the window from
left to right, beginning in the state after the text before it; behind the window only what can still follow counts. One
more state, `end`, is entered by the end token and never left: a slot in `end` weighs as much as the model's belief that
nothing stands there, which is what keeps short texts from looking cheap.

Messages are sums (or maxima) over all texts of the product of the slots' probabilities: `backward` from the right,
`forward` from the left, in float64 and in log space. They are computed on the host, where small arrays cost least; the
device reduces distributions over the vocabulary to classes of tokens before, and turns the results into tokens after.

An edge is a pair of states with the set of classes that take it; equal sets are stored once. State S is `end`; set U is
the end token, set U + 1 stands for slots after it. Shapes: W slots, N slots of the frontier, V tokens, C classes,
S states, U sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from voidpad.constrain.tokens import TokenAutomaton
from voidpad.roles import Roles

NEVER = -1e18  # the logarithm of zero; finite, so that differences of such numbers are numbers
POSSIBLE = -1e17  # whatever has a weight above this can happen
FLOOR = -600.0  # no token is less probable than exp(FLOOR): sums of probabilities stay above zero in float64
WRITTEN, FRONTIER, WILDCARD = range(3)  # kinds of slots
NOTHING = -1  # the token of a slot that proposes none
_WIDTH = 64  # values that are reduced together on the device

Floats = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Window:
    """What the automaton reads: slots, the state before them, and what may follow them."""

    kind: NDArray[np.int64]  # (W,) WRITTEN, FRONTIER or WILDCARD
    classes: NDArray[np.int64]  # (W,) the classes of written tokens, -1 for tokens without one
    ended: NDArray[np.bool_]  # (W,) written slots that hold an end token
    start: int  # the state before the first slot; S if the text has ended
    final: Floats  # (S + 1,) 0 for the states that may stand after the last slot, NEVER for the others


@dataclass(frozen=True)
class Beliefs:
    """The model's distributions on the frontier, in log space, as far as the automaton tells tokens apart."""

    total: Floats  # (N, C) the probability of each class
    best: Floats  # (N, C) that of its most probable token
    ends: Floats  # (N, 2) that of all end tokens, and of all tokens that say that nothing stands here

    @classmethod
    def of(cls, reduced: Floats) -> Beliefs:
        """From the columns that `TokenTables.beliefs` makes."""
        classes = reduced.shape[1] // 2 - 1
        return cls(reduced[:, :classes], reduced[:, classes:-2], reduced[:, -2:])


class _Groups:
    """Values that are reduced by group. Groups without values are left out; `name` are the numbers of the others."""

    def __init__(self, group: NDArray[Any]) -> None:
        order = np.argsort(group, kind="stable")
        ordered = group[order]
        self.order = slice(None) if np.array_equal(ordered, group) else order
        self.name, self.start, self.sizes = np.unique(ordered, return_index=True, return_counts=True)

    def maximum(self, values: Floats) -> Floats:
        found: Floats = np.maximum.reduceat(values[..., self.order], self.start, axis=-1)
        return found

    def log_total(self, values: Floats) -> Floats:
        ordered = values[..., self.order]
        top = np.maximum.reduceat(ordered, self.start, axis=-1)
        shares = np.exp(ordered - np.repeat(top, self.sizes, axis=-1))
        found: Floats = top + np.log(np.add.reduceat(shares, self.start, axis=-1))
        return found


class Messages:
    """The messages of one automaton over windows."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton, self.end = automaton, automaton.states
        source, target = automaton.edges
        known: dict[bytes, int] = {}
        edge_set = [
            known.setdefault(np.flatnonzero(automaton.table[a] == b).tobytes(), len(known))
            for a, b in zip(source, target, strict=True)
        ]
        contents = [np.frombuffer(content, np.intp) for content in known]
        self.sets = len(contents)
        self.item = np.concatenate([*contents, np.zeros(0, np.intp)])  # the classes of all sets
        self.item_set = np.repeat(np.arange(self.sets), [len(content) for content in contents])
        # Every state now has an edge that leaves it: accepting states lead to `end`, and `end` leads to itself.
        stops = np.flatnonzero(automaton.accepting)
        ends = np.full(len(stops), self.end)
        sources = np.concatenate([source, stops, [self.end]])
        order = np.argsort(sources, kind="stable")
        self.source = sources[order]
        self.target = np.concatenate([target, ends, [self.end]])[order]
        self.edge_set = np.array([*edge_set, *([self.sets] * len(stops)), self.sets + 1])[order]
        self.first_edge = np.searchsorted(self.source, np.arange(self.end + 2))
        self.by_source, self.by_target = _Groups(self.source), _Groups(self.target)
        self.by_set = _Groups(self.edge_set)
        self.items_by_set, self.items_by_class = _Groups(self.item_set), _Groups(self.item)

    def final(self, left: int, *, closed: bool) -> Floats:
        """What may follow a window (S + 1,): 0 for states from which the text can be completed in time, else NEVER.

        `left` slots follow. A text may end before them; in a closed window, such as a gap in a fixed text, it must
        fill them exactly.
        """
        fits = self.automaton.completes_in(left) if closed else self.automaton.distance <= left
        return np.where(np.append(fits, not closed), 0.0, NEVER)

    def weights(self, window: Window, beliefs: Beliefs, *, best: bool) -> Floats:
        """What each slot adds to a text's weight (W, U + 2), by the set of classes from which its token comes.

        Sums over tokens or, with `best`, the most probable token of each set. A written slot allows its own token
        only; a wildcard allows everything.
        """
        found = np.zeros((len(window.kind), self.sets + 2))
        for slot in np.flatnonzero(window.kind == WRITTEN):
            found[slot, :-1] = NEVER
            allowed = self.sets if window.ended[slot] else self.item_set[self.item == window.classes[slot]]
            found[slot, allowed] = 0.0
        frontier = window.kind == FRONTIER
        reduce = self.items_by_set.maximum if best else self.items_by_set.log_total
        found[frontier, : self.sets] = reduce((beliefs.best if best else beliefs.total)[:, self.item])
        found[frontier, self.sets :] = beliefs.ends
        return found

    def backward(self, window: Window, weights: Floats, *, best: bool) -> Floats:
        """The weight (W + 1, S + 1) of completing the text from each state before each slot, and after the last."""
        reduce = self.by_source.maximum if best else self.by_source.log_total
        found = np.empty((len(window.kind) + 1, self.end + 1))
        found[-1] = window.final
        for slot in range(len(window.kind) - 1, -1, -1):
            found[slot] = reduce(weights[slot, self.edge_set] + found[slot + 1, self.target])
            if window.kind[slot] == WILDCARD:
                found[slot] = np.where(found[slot] > POSSIBLE, 0.0, NEVER)
        return found

    def forward(self, window: Window, weights: Floats) -> Floats:
        """The weight (W + 1, S + 1) of arriving in each state before each slot, and after the last."""
        found = np.full((len(window.kind) + 1, self.end + 1), NEVER)
        found[0, window.start] = 0.0
        for slot in range(len(window.kind)):
            edges = weights[slot, self.edge_set] + found[slot, self.source]
            found[slot + 1, self.by_target.name] = self.by_target.log_total(edges)
            if window.kind[slot] == WILDCARD:
                found[slot + 1] = np.where(found[slot + 1] > POSSIBLE, 0.0, NEVER)
        return found

    def follow(
        self, window: Window, weights: Floats, messages: Floats, uniform: Floats | None = None
    ) -> Index:
        """The sets (W,) from which the tokens of one text come: U where it ends, U + 1 after that.

        With messages of maxima it is the heaviest text; with messages of sums and uniform numbers (W,), an exact draw.
        `messages` come from `backward` with the same weights.
        """
        found, state = np.empty(len(window.kind), np.intp), window.start
        for slot in range(len(window.kind)):
            edges = slice(self.first_edge[state], self.first_edge[state + 1])
            options = weights[slot, self.edge_set[edges]] + messages[slot + 1, self.target[edges]]
            if uniform is None:
                pick = edges.start + int(options.argmax())
            else:  # the first to pass the bar adds something, so it is possible
                reached = np.exp(options - options.max()).cumsum()
                pick = edges.start + int((reached > min(uniform[slot], 1 - 1e-12) * reached[-1]).argmax())
            found[slot], state = self.edge_set[pick], self.target[pick]
        return found

    def marginals(self, at: Index, weights: Floats, before: Floats, after: Floats) -> Floats:
        """The distributions of the slots `at` among all texts that match, in log space (N, C + 2).

        For each class what to add to a token's log-probability; then the probability that the text ends here, and that
        it has ended before. `before` and `after` are forward and backward sums.
        """
        arrive, leave = before[at], after[at + 1]
        total: Floats = np.logaddexp.reduce(arrive + after[at], axis=-1)[:, None]
        per_set = self.by_set.log_total(arrive[:, self.source] + leave[:, self.target])
        per_class = self.items_by_class.log_total(per_set[:, self.item_set])
        return np.concatenate([per_class, per_set[:, -2:] + weights[at, -2:]], 1) - total


# On the device


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax in float64 with a finite floor."""
    return logits.double().log_softmax(-1).clamp(min=FLOOR)


class TokenTables:
    """An automaton's classes and sets as tensors, to go from distributions over tokens to classes and back."""

    def __init__(self, messages: Messages, roles: Roles, device: torch.device) -> None:
        automaton = messages.automaton
        self.classes, self.eos, self.mask = automaton.classes, roles.eos, roles.mask
        padding = {*roles.ends, *roles.rainbow, *(() if roles.void is None else (roles.void,))}
        member = np.zeros((messages.sets + 2, self.classes + 1), bool)
        member[messages.item_set, messages.item] = True
        no_class = np.where(automaton.token_class < 0, self.classes, automaton.token_class)
        with torch.inference_mode(False):
            self.ends, self.tail = (torch.tensor(sorted(ids), device=device) for ids in (roles.ends, padding))
            self.member = torch.from_numpy(member).to(device)
            self.token_class = torch.from_numpy(no_class).long().to(device)
            self.levels = [torch.from_numpy(one).to(device) for one in _tree(automaton)]

    def beliefs(self, log_p: Tensor) -> Tensor:
        """Distributions (N, V), in log space, reduced to (N, 2 C + 2): totals and maxima of classes, end and tail.

        They are the model's, before any token is banned: a slot where the model wants padding must look unlikely as
        text.
        """
        p = log_p.exp()
        total, best = p, log_p
        for level in self.levels:  # in a fixed order: scatter-add is not deterministic on a GPU
            total = pad(total, (0, 1))[:, level].sum(-1)
            best = pad(best, (0, 1), value=NEVER)[:, level].amax(-1)
        end, tail = (p[:, ids].sum(1, keepdim=True) for ids in (self.ends, self.tail))
        return torch.cat([total.log(), best, end.log(), tail.log()], 1)

    def tokens(self, path: Tensor, scores: Tensor) -> Tensor:
        """The tokens (N,) of a path: the one with the highest score (N, V) among those that take its step.

        `eos` where the text ends, NOTHING where it has ended before.
        """
        best = scores.masked_fill(~self.member[path][:, self.token_class], -torch.inf).argmax(1)
        after = len(self.member) - 1
        best = torch.where(path == after, NOTHING, best)
        return torch.where(path == after - 1, self.eos, best)

    def distribution(self, marginals: Tensor, log_p: Tensor) -> Tensor:
        """Marginals (N, C + 2) as probabilities of tokens (N, V). After the text's end, it is MASK that has it all.

        Ids of roles have no class, so their columns are free.
        """
        classes = pad(marginals[:, :-2], (0, 1), value=NEVER)
        p = (log_p + classes[:, self.token_class]).exp()
        p[:, self.eos], p[:, self.mask] = marginals[:, -2].exp(), marginals[:, -1].exp()
        return p


def _tree(automaton: TokenAutomaton) -> list[NDArray[np.int64]]:
    """How values of tokens are reduced by class: levels (groups, width) of indices into the level before.

    One past the last index stands for no value. Each class has one group in the last level.
    """
    count = automaton.classes
    order = np.argsort(automaton.token_class, kind="stable")
    order = order[automaton.token_class[order] >= 0]
    segment, size, levels = automaton.token_class[order], len(automaton.token_class), []
    while True:
        sizes = np.bincount(segment, minlength=count)
        groups = -(-sizes // _WIDTH)
        first = np.cumsum(groups) - groups
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        index = np.full((int(groups.sum()), _WIDTH), size)
        index[first[segment] + place // _WIDTH, place % _WIDTH] = order
        levels.append(index)
        if len(index) == count:
            return levels
        segment, size = np.repeat(np.arange(count), groups), len(index)
        order = np.arange(size)
