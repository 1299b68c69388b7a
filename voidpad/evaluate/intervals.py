"""The interval formulas of every table, page and study: Wilson's for a share, a paired bootstrap for a difference."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

Interval = tuple[float, float]
Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval
RESAMPLES = 20_000


def wilson(correct: float, count: int, z: float = Z95) -> Interval:
    """Wilson's 95 % interval of a share, within [0, 1]; it holds for few items and near 0 and 1 too."""
    if count < 1:
        return 0.0, 1.0
    share, spread = correct / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_of_tasks(shares: Sequence[tuple[float, Interval]]) -> Interval:
    """The interval of an unweighted mean of independent shares, from their own intervals.

    Zou and Donner's MOVER: the distances from each share to the ends of its interval add up in squares.
    """
    count = len(shares)
    middle = fmean([share for share, _ in shares])
    down = math.sqrt(sum((share - low) ** 2 for share, (low, _) in shares)) / count
    up = math.sqrt(sum((high - share) ** 2 for share, (_, high) in shares)) / count
    return middle - down, middle + up


def paired_bootstrap(differences: Sequence[float]) -> Interval:
    """The 95 % percentile interval of the mean of differences on the same items.

    Items are drawn with replacement. Scores take few values, so a draw of n items is a multinomial draw of how often
    each distinct difference occurs. The seed is fixed: equal differences give equal intervals.
    """
    values, counts = np.unique(np.asarray(differences, dtype=float), return_counts=True)
    size = int(counts.sum())
    drawn = np.random.default_rng(0).multinomial(size, counts / size, size=RESAMPLES)
    low, high = np.percentile(drawn @ values / size, (2.5, 97.5))
    return float(low), float(high)


def mcnemar(lost: int, won: int) -> float:
    """The exact two-sided p value of McNemar's test: under no difference, losses and wins are equally likely."""
    total = lost + won
    tail = sum(math.comb(total, k) for k in range(min(lost, won) + 1))
    return min(1.0, tail / 2 ** (total - 1)) if total else 1.0
