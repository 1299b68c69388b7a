"""Numbers of a run: intervals, means, shares."""

import math
from collections.abc import Sequence
from statistics import pstdev
from typing import Any

Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval
MEANS = ("passes_decode", "passes_probe", "passes_shared", "canvas", "answer_tokens")


def wilson(correct: float, count: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, within [0, 1]; it holds for few items and near 0 and 1 too."""
    if count < 1:
        return 0.0, 1.0
    share, spread = correct / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired(differences: Sequence[float]) -> tuple[float, float]:
    """The mean of differences on the same items, and half its normal 95 % interval."""
    return mean(differences), Z95 * pstdev(differences) / math.sqrt(len(differences))


def _scored(values: Sequence[float]) -> dict[str, Any]:
    """A score in percent with its interval."""
    correct = sum(values)
    low, high = wilson(correct, len(values))
    return {
        "correct": correct,
        "score": round(100 * correct / len(values), 2),
        "interval": [100 * low, 100 * high],
    }


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def summary(examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One task's numbers from its examples."""
    graders = examples[0]["scores"]
    numbers: dict[str, Any] = {"n": len(examples), **_scored([one["score"] for one in examples])}
    numbers["scores"] = {name: _scored([one["scores"][name] for one in examples]) for name in graders}
    numbers |= {name: mean([one[name] for one in examples]) for name in MEANS}
    numbers["passes_total"] = numbers["passes_decode"] + numbers["passes_probe"] - numbers["passes_shared"]
    numbers["share_at_cap"] = mean([one["at_cap"] for one in examples])
    numbers["share_without_eos"] = mean([not one["eos"] for one in examples])
    numbers["seconds"] = math.fsum(one["seconds"] for one in examples)
    return numbers
