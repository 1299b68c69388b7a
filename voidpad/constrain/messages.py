"""Decoding under a constraint: the most probable text that matches, exact draws, and the certainty of each slot.

A window is a stretch of a row's slots. Each slot is written (it holds a token), on the frontier (it is masked and the
model gives a distribution for it), or a wildcard (masked, without a distribution). The automaton reads the window from
left to right, beginning in the state after the text before it; behind the window only what can still follow counts. One
more state, `end`, is entered by the end token and never left: a slot in `end` weighs as much as the model's belief that
nothing stands there, which is what keeps short texts from looking cheap.

Messages are sums (or maxima) over all texts of the product of the slots' probabilities: `backward` from the right,
`forward` from the left, in float64 and in log space. They are computed on the host, where small arrays cost least, for
all rows that share a constraint together. Before, the device reduces distributions over the vocabulary to classes of
tokens. The most probable text and the certainty of its slots follow from the classes alone; draws, and margins between
tokens, go back to the vocabulary on the device.

An edge is a pair of states with the set of classes that take it; equal sets are stored once. State S is `end`; set U is
the end token, set U + 1 stands for slots after it. Shapes: R rows, W slots, N slots on the frontiers of all rows, from
row to row, V tokens, C classes, S states, U sets.
"""

from __future__ import annotations

from collections.abc import Sequence
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
# Kinds of slots; rows shorter than others end with ABSENT ones.
WRITTEN, FRONTIER, WILDCARD, ABSENT = range(4)
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
class Windows:
    """The windows of several rows, filled up at the end with slots that are ABSENT."""

    kind: NDArray[np.int64]  # (R, W)
    classes: NDArray[np.int64]  # (R, W)
    ended: NDArray[np.bool_]  # (R, W)
    start: NDArray[np.int64]  # (R,)
    final: Floats  # (R, S + 1)

    @classmethod
    def of(cls, rows: Sequence[Window]) -> Windows:
        width = max(len(row.kind) for row in rows)

        def filled(name: str, empty: int) -> NDArray[Any]:
            parts = [getattr(row, name) for row in rows]
            return np.stack([np.pad(part, (0, width - len(part)), constant_values=empty) for part in parts])

        start, final = np.array([row.start for row in rows]), np.stack([row.final for row in rows])
        return cls(filled("kind", ABSENT), filled("classes", -1), filled("ended", False), start, final)

    @property
    def frontier(self) -> tuple[Index, Index]:
        """Row and slot of the N slots on the frontiers."""
        row, slot = np.nonzero(self.kind == FRONTIER)
        return row, slot


@dataclass(frozen=True)
class Beliefs:
    """The model's distributions on the frontier, in log space, as far as the automaton tells tokens apart."""

    total: Floats  # (N, C) the probability of each class
    best: Floats  # (N, C) that of its most probable token
    token: Floats  # (N, C) this token, the smallest id of equals
    # (N, C) the sum of p log p over its tokens: no logarithm, but a share of minus the entropy.
    information: Floats
    ends: Floats  # (N, 2) the probability of all end tokens, and of all tokens that say that nothing stands here

    @classmethod
    def of(cls, reduced: Floats) -> Beliefs:
        """From the columns that `TokenTables.beliefs` makes."""
        total, best, token, information = np.split(reduced[:, :-2], 4, axis=1)
        return cls(total, best, token, information, reduced[:, -2:])


class _Groups:
    """Values that are reduced by group, along the first axis. Groups without values are left out; `name` are the
    numbers of the others."""

    def __init__(self, group: NDArray[Any]) -> None:
        order = np.argsort(group, kind="stable")
        ordered = group[order]
        self.order = slice(None) if np.array_equal(ordered, group) else order
        self.name, self.start, self.sizes = np.unique(ordered, return_index=True, return_counts=True)

    def maximum(self, values: Floats) -> Floats:
        found: Floats = np.maximum.reduceat(values[self.order], self.start)
        return found

    def log_total(self, values: Floats) -> Floats:
        ordered = values[self.order]
        top = np.maximum.reduceat(ordered, self.start)
        shares = np.exp(ordered - np.repeat(top, self.sizes, axis=0))
        found: Floats = top + np.log(np.add.reduceat(shares, self.start))
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
        # The sets of each class; the last has none.
        self.member = np.zeros((automaton.classes + 1, self.sets), bool)
        self.member[self.item, self.item_set] = True

    def final(self, left: int, *, closed: bool) -> Floats:
        """What may follow a window (S + 1,): 0 for states from which the text can be completed in time, else NEVER.

        `left` slots follow. A text may end before them; in a closed window, such as a gap in a fixed text, it must
        fill them exactly.
        """
        fits = self.automaton.completes_in(left) if closed else self.automaton.distance <= left
        return np.where(np.append(fits, not closed), 0.0, NEVER)

    def weights(self, windows: Windows, beliefs: Beliefs, *, best: bool) -> Floats:
        """What each slot adds to a text's weight (W, U + 2, R), by the set of classes from which its token comes.

        Sums over tokens or, with `best`, the most probable token of each set. A written slot allows its own token
        only; a wildcard allows everything.
        """
        rows, width = windows.kind.shape
        found = np.zeros((width, self.sets + 2, rows))
        row, slot = np.nonzero(windows.kind == WRITTEN)
        ended = windows.ended[row, slot][:, None]
        allowed = np.concatenate([self.member[windows.classes[row, slot]] & ~ended, ended], 1)
        found[slot, :-1, row] = np.where(allowed, 0.0, NEVER)
        row, slot = windows.frontier
        reduce = self.items_by_set.maximum if best else self.items_by_set.log_total
        found[slot, : self.sets, row] = reduce((beliefs.best if best else beliefs.total).T[self.item]).T
        found[slot, self.sets :, row] = beliefs.ends
        return found

    def backward(self, windows: Windows, weights: Floats, *, best: bool) -> Floats:
        """The weight (W + 1, S + 1, R) of completing the text from each state before each slot, and after the last."""
        reduce = self.by_source.maximum if best else self.by_source.log_total
        found = np.empty((len(weights) + 1, self.end + 1, weights.shape[-1]))
        found[-1] = windows.final.T
        for slot in range(len(weights) - 1, -1, -1):
            found[slot] = reduce(weights[slot][self.edge_set] + found[slot + 1][self.target])
            self._bend(windows.kind[:, slot], found[slot], found[slot + 1])
        return found

    def forward(self, windows: Windows, weights: Floats) -> Floats:
        """The weight (W + 1, S + 1, R) of arriving in each state before each slot, and after the last."""
        rows = weights.shape[-1]
        found = np.full((len(weights) + 1, self.end + 1, rows), NEVER)
        found[0, windows.start, np.arange(rows)] = 0.0
        for slot in range(len(weights)):
            edges = weights[slot][self.edge_set] + found[slot][self.source]
            found[slot + 1, self.by_target.name] = self.by_target.log_total(edges)
            self._bend(windows.kind[:, slot], found[slot + 1], found[slot])
        return found

    @staticmethod
    def _bend(kind: NDArray[np.int64], found: Floats, before: Floats) -> None:
        """A wildcard says what is possible and no more; an absent slot leaves the message as it was."""
        if (kind >= WILDCARD).any():
            wild, absent = kind == WILDCARD, kind == ABSENT
            found[:, wild] = np.where(found[:, wild] > POSSIBLE, 0.0, NEVER)
            found[:, absent] = before[:, absent]

    def follow(
        self, windows: Windows, weights: Floats, messages: Floats, uniform: Floats | None = None
    ) -> Index:
        """The sets (R, W) from which the tokens of one text of each row come: U where it ends, U + 1 after that.

        With messages of maxima it is the heaviest text; with messages of sums and uniform numbers (R, W), an exact
        draw. `messages` come from `backward` with the same weights.
        """
        found = np.full(windows.kind.shape, self.sets + 1, np.intp)
        for row, state in enumerate(windows.start.tolist()):
            for slot in range(int((windows.kind[row] != ABSENT).sum())):
                edges = slice(self.first_edge[state], self.first_edge[state + 1])
                options = (
                    weights[slot, self.edge_set[edges], row] + messages[slot + 1, self.target[edges], row]
                )
                if uniform is None:
                    pick = edges.start + int(options.argmax())
                else:  # the first to pass the bar adds something, so it is possible
                    reached = np.exp(options - options.max()).cumsum()
                    bar = min(uniform[row, slot], 1 - 1e-12) * reached[-1]
                    pick = edges.start + int((reached > bar).argmax())
                found[row, slot], state = self.edge_set[pick], self.target[pick]
        return found

    def marginals(self, windows: Windows, weights: Floats, before: Floats, after: Floats) -> Floats:
        """The distributions of the frontier's slots among all texts that match, in log space (N, C + 2).

        For each class what to add to a token's log-probability; then the probability that the text ends here, and that
        it has ended before. `before` and `after` are forward and backward sums.
        """
        row, slot = windows.frontier
        arrive, leave = before[slot, :, row].T, after[slot + 1, :, row].T  # (S + 1, N)
        total: Floats = np.logaddexp.reduce(arrive + after[slot, :, row].T, axis=0)
        per_set = self.by_set.log_total(arrive[self.source] + leave[self.target])
        per_class = self.items_by_class.log_total(per_set[self.item_set])
        ends = per_set[-2:] + weights[slot, -2:, row].T
        return np.ascontiguousarray((np.concatenate([per_class, ends]) - total).T)

    def best_tokens(self, path: Index, beliefs: Beliefs, eos: int) -> tuple[NDArray[np.int64], Index]:
        """The most probable tokens (N,) from these sets (N,), the smallest id of equals, and their classes.

        `eos` where the text ends, NOTHING where it has ended before; both have class C or beyond.
        """
        classes = self.automaton.classes
        tokens = np.where(path == self.sets, eos, NOTHING)
        column = np.where(path == self.sets, classes, classes + 1)
        text = np.flatnonzero(path < self.sets)
        if len(text):
            share = np.where(self.member[:-1, path[text]].T, beliefs.best[text], -np.inf)
            equal = share == share.max(1, keepdims=True)
            column[text] = np.where(equal, beliefs.token[text], np.inf).argmin(1)
            tokens[text] = beliefs.token[text, column[text]]
        return tokens, column


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
        """Distributions (N, V), in log space, reduced to the columns of `Beliefs` (N, 4 C + 2).

        They are the model's, before any token is banned: a slot where the model wants padding must look unlikely as
        text.
        """
        p = log_p.exp()
        total, information, best = p, p * log_p, log_p
        token = torch.arange(log_p.shape[1], device=log_p.device).expand_as(log_p)
        for level in self.levels:  # in a fixed order: scatter-add is not deterministic on a GPU
            total, information = (pad(values, (0, 1))[:, level].sum(-1) for values in (total, information))
            values = pad(best, (0, 1), value=NEVER)[:, level]
            first = values.argmax(-1, keepdim=True)
            best = values.gather(-1, first)[..., 0]
            token = pad(token, (0, 1))[:, level].gather(-1, first)[..., 0]
        end, tail = (p[:, ids].sum(1, keepdim=True) for ids in (self.ends, self.tail))
        return torch.cat([total.log(), best, token.double(), information, end.log(), tail.log()], 1)

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
