"""Theorems 1 and 2 of the paper on a distribution of answer lengths, and how far a model follows them.

Slots count from 1, as in the paper. F(m) is the share of answers with at most m tokens. Under EOS padding slot i
holds EOS exactly when the answer has at most i - 1 tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate

from torch import Tensor

from voidpad.decode.loop import Denoiser
from voidpad.decode.rows import Rows
from voidpad.diagnose.eos_prior import CanvasReading, batches_of, read_canvas
from voidpad.errors import ConfigError
from voidpad.roles import Roles

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class LengthModel:
    """Answer lengths with their weights, in exact arithmetic."""

    weights: tuple[tuple[int, Fraction], ...]  # by length, ascending, positive

    @classmethod
    def of(cls, lengths: Iterable[int]) -> LengthModel:
        """The empirical distribution of a sample."""
        return cls.weighted(Counter(lengths))

    @classmethod
    def weighted(cls, weights: Mapping[int, int | str | Fraction]) -> LengthModel:
        """Any weights; a decimal is given as text, so that .35 means .35."""
        kept = {length: Fraction(weight) for length, weight in weights.items()}
        if not kept or min(kept) < 0 or min(kept.values()) < 0 or not sum(kept.values()):
            raise ConfigError(
                f"lengths {dict(weights)}: give lengths of 0 or more with weights of 0 or more, not all 0."
            )
        return cls(tuple(sorted((length, weight) for length, weight in kept.items() if weight)))

    @cached_property
    def _steps(self) -> tuple[list[int], list[Fraction]]:
        return [length for length, _ in self.weights], list(accumulate(w for _, w in self.weights))

    def share(self, m: int) -> Fraction:
        """F(m)."""
        lengths, sums = self._steps
        place = bisect_right(lengths, m)
        return sums[place - 1] / sums[-1] if place else Fraction(0)

    def given(self, m: int, limit: int) -> Fraction:
        """P(length <= m | length <= limit), counted directly."""
        below = [(length, weight) for length, weight in self.weights if length <= limit]
        hit = sum((weight for length, weight in below if length <= m), Fraction(0))
        return hit / sum(weight for _, weight in below)

    @property
    def median(self) -> int:
        """The smallest m with F(m) > 1/2."""
        return next(length for length, _ in self.weights if self.share(length) > HALF)


@dataclass(frozen=True)
class Prediction:
    """What the theorems say of one canvas."""

    canvas: int
    block: int
    start: int  # r: EOS is likelier than all words together from here on
    rounds: tuple[tuple[int, ...], ...]  # slots the suffix spreads to, round by round

    @property
    def opening(self) -> range:
        """Theorem 1: slots of the first block that are written as EOS when they are chosen first."""
        return range(self.start, self.block + 1)

    @property
    def spread(self) -> tuple[int, ...]:
        """Theorem 2: slots that become EOS once r..L are."""
        return self.rounds[0] if self.rounds else ()

    @property
    def fixpoint(self) -> int:
        """Where the suffix stops spreading."""
        return self.rounds[-1][0] if self.rounds else self.start


def predict(lengths: LengthModel, canvas: int, block: int) -> Prediction:
    """r, the spread set and the fixpoint. The theorems need F(L - 1) > 1/2."""
    start = lengths.median + 1
    if start > canvas:
        raise ConfigError(
            f"canvas={canvas}: only {float(lengths.share(canvas - 1)):.1%} of the answers leave room for EOS, "
            f"and the theorems need more than half; use a canvas of at least {start}."
        )
    rounds: list[tuple[int, ...]] = []
    suffix = start
    while reached := spread(lengths, suffix):
        rounds.append(reached)
        suffix = reached[0]
    return Prediction(canvas, block, start, tuple(rounds))


def spread(lengths: LengthModel, start: int) -> tuple[int, ...]:
    """Slots i < start with 2 F(i - 1) > F(start - 1); a run that ends at start - 1, as F never falls."""
    return tuple(i for i in range(1, start) if 2 * lengths.share(i - 1) > lengths.share(start - 1))


@dataclass(frozen=True)
class LengthShare:
    """In how many of the slots a prediction came true."""

    hits: int
    slots: int

    @property
    def value(self) -> float | None:
        return self.hits / self.slots if self.slots else None


@dataclass(frozen=True)
class Agreement:
    """A model against the theorems, over the slots of many prompts."""

    opening: LengthShare  # theorem 1: P(EOS) > 1/2 and EOS the likeliest, among slots r..B of an empty canvas
    opening_gap: float  # mean |q_i(e) - F(i - 1)| over all slots of it
    spread: LengthShare  # theorem 2: EOS the likeliest, among the spread set with r..L forced to EOS
    beyond: LengthShare  # the same among the slots before the spread set, of which the theorem says nothing
    spread_gap: float | None  # mean |q_i(e) - F(i - 1) / F(r - 1)| over the slots before r


@dataclass(frozen=True)
class Case:
    """A prompt and the distribution of its answers' lengths."""

    prompt: Sequence[int]
    lengths: LengthModel


def agree(
    denoise: Denoiser, roles: Roles, cases: Sequence[Case], *, canvas: int, block: int, tokens: int = 4096
) -> Agreement:
    """Two passes a prompt: on the empty canvas, and with r..L forced to EOS."""
    predictions = [predict(case.lengths, canvas, block) for case in cases]
    tally = _AgreementCounts()
    for rows in batches_of([len(case.prompt) + canvas for case in cases], tokens):
        blank = Rows.blank([cases[row].prompt for row in rows], canvas, roles)
        empty = read_canvas(denoise, blank)
        forced = read_canvas(denoise, suffixed(blank, [predictions[row].start for row in rows]))
        for place, row in enumerate(rows):
            tally.opening(empty, place, cases[row].lengths, predictions[row], roles.eos)
            tally.spread(forced, place, cases[row].lengths, predictions[row], roles.eos)
    return tally.result()


def suffixed(canvas: Rows, start: Sequence[int]) -> Rows:
    """Slots `start[b]`.. of every row as EOS."""
    first = canvas.prompt + canvas.prompt.new_tensor(start) - 1
    chosen = canvas.slots & (canvas.offset >= first[:, None])
    return replace(canvas, ids=canvas.ids.masked_fill(chosen, canvas.roles.eos))


class _AgreementCounts:
    def __init__(self) -> None:
        self.hits: dict[str, list[bool]] = {"opening": [], "spread": [], "beyond": []}
        self.gaps: dict[str, list[float]] = {"opening": [], "spread": []}

    def opening(
        self, seen: CanvasReading, row: int, lengths: LengthModel, prediction: Prediction, eos: int
    ) -> None:
        q, best = seen.eos[row], seen.best[row]
        self.hits["opening"] += [bool(q[i - 1] > 0.5 and best[i - 1] == eos) for i in prediction.opening]
        every = range(1, prediction.canvas + 1)
        self.gaps["opening"] += [_gap(q, i, lengths.share(i - 1)) for i in every]

    def spread(
        self, seen: CanvasReading, row: int, lengths: LengthModel, prediction: Prediction, eos: int
    ) -> None:
        q, best = seen.eos[row], seen.best[row]
        for i in range(1, prediction.start):
            self.hits["spread" if i in prediction.spread else "beyond"].append(bool(best[i - 1] == eos))
            ratio = lengths.share(i - 1) / lengths.share(prediction.start - 1)
            self.gaps["spread"].append(_gap(q, i, ratio))

    def result(self) -> Agreement:
        shares = {name: LengthShare(sum(values), len(values)) for name, values in self.hits.items()}
        gaps = {
            f"{name}_gap": sum(values) / len(values) if values else None for name, values in self.gaps.items()
        }
        return Agreement(**shares, **gaps)  # type: ignore[arg-type]


def _gap(q: Tensor, slot: int, expected: Fraction) -> float:
    return abs(float(q[slot - 1]) - float(expected))
