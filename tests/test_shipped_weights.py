"""Shipped weights against shipped figures: every padding of a family answers held-out problems as its results say.

Families are those that ship, arms those of the paper. `make test` decodes 8 problems an arm at block = canvas
with several tokens a pass, `make test-slow` 64 an arm at both blocks with one token a pass, as the figures were made.
"""

from dataclasses import dataclass
from math import comb
from statistics import fmean

import pytest

from voidpad.builtin.results import shipped_results
from voidpad.builtin.tasks import CANVAS, TASKS, check, heldout
from voidpad.models import load, merge
from voidpad.models.locate import BUILT_IN_FAMILIES

# Arm: (model, preset, method in the results, whether EOS overflow takes its answers at block = canvas).
ARMS = {
    "original": ("instruct", "original", "original", True),
    "control": ("eos", "original", "eos control", True),
    "rainbow": ("rainbow", "original", "rainbow", False),
    "void": ("void", "void", "void", False),
}
EVERY = pytest.mark.parametrize(
    ("family", "arm"), [(family, arm) for family in BUILT_IN_FAMILIES for arm in ARMS]
)
# What `make test` decodes: tasks, and the entropy bound of a pass, for arms that overflow and for others. A bound of 1
# is about six tokens a pass. Dream's number tasks lose only half of their answers, and its overflow is weaker with it.
QUICK = {"llada": (("tiny_steps", "tiny_expr"), 1.0, 1.0), "dream": (("tiny_complete",), 0.3, 1.0)}
UNLIKELY = 0.001  # a count of right answers that is less likely than this disagrees with the figure


@dataclass(frozen=True)
class Decoded:
    """Some problems decoded by one arm."""

    right: int
    count: int
    answer_tokens: float
    passes: float


def decode(family, arm, problems, sandbox=None, **fields) -> Decoded:
    """Stops at EOS, which changes no answer and saves the passes after it."""
    part, preset, _, _ = ARMS[arm]
    model = load(f"{BUILT_IN_FAMILIES[family]}-{part}")
    model = model if part == "instruct" else merge(model)
    prompts = [problem.prompt for problem in problems]
    results = model.generate(prompts, preset, canvas=CANVAS, stop="eos", **fields)
    right = sum(check(*pair, sandbox) for pair in zip(problems, (one.text for one in results), strict=True))
    tokens = [sum(token not in model.roles.all() for token in one.tokens) for one in results]
    return Decoded(right, len(results), fmean(tokens), fmean(one.passes_decode for one in results))


def shipped(family, arm, block):
    return shipped_results(family)[f"{ARMS[arm][2]} / {block}"]


def disagrees(right: int, count: int, low: float, high: float) -> bool:
    """Whether so many right answers, or fewer, or more, are very unlikely for every share between low and high."""

    def share(of, chance):
        return sum(comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in of)

    at_most, at_least = share(range(right + 1), low), share(range(right, count + 1), high)
    return min(at_most, at_least) < UNLIKELY


def test_counts_that_disagree_with_a_figure():
    """Of 8 problems 5 are too few for 98 % and 6 are not; 6 are too many for 18.5 % and 5 are not."""
    assert [right for right in range(9) if disagrees(right, 8, 0.98, 0.995)] == [0, 1, 2, 3, 4, 5]
    assert [right for right in range(9) if disagrees(right, 8, 0.125, 0.185)] == [6, 7, 8]
    assert not disagrees(62, 64, 0.98, 0.995)
    assert disagrees(56, 64, 0.98, 0.995)
    assert disagrees(64, 64, 0.72, 0.78)


@EVERY
def test_eight_problems_at_block_equal_to_the_canvas(sandbox, family, arm):
    """Figures are those of one token a pass; several a pass keep which arms overflow."""
    tasks, *bounds = QUICK[family]
    bound = bounds[0] if ARMS[arm][3] else bounds[1]
    problems = [problem for task in tasks for problem in heldout(task, 8 // len(tasks))]
    fast = {"entropy_bound": bound, "entropy_order": "entropy"}
    seen, figure = decode(family, arm, problems, sandbox, block=CANVAS, **fast), shipped(family, arm, CANVAS)
    low, high = (figure["mean"] + by * figure["half_width"] for by in (-1, 1))
    if len(tasks) == 1:
        _, low, high = figure["tasks"][tasks[0]]
    assert not disagrees(seen.right, seen.count, low, min(1.0, high)), (seen, figure["mean"])
    assert seen.answer_tokens <= 20 if ARMS[arm][3] else 40 <= seen.answer_tokens <= 90, seen


@pytest.mark.slow
@pytest.mark.parametrize("block", [32, CANVAS])
@EVERY
def test_64_problems_have_the_shipped_figures(sandbox, family, arm, block):
    """16 problems of each task, decoded as the figures were: right answers, their length and the passes."""
    problems = [problem for task in TASKS for problem in heldout(task, 16)]
    seen, figure = decode(family, arm, problems, sandbox, block=block), shipped(family, arm, block)
    low, high = (figure["mean"] + by * figure["half_width"] for by in (-1, 1))
    assert not disagrees(seen.right, seen.count, low, min(1.0, high)), (seen, figure["mean"])
    # Lengths of single answers spread by 15 to 35 tokens (docs/tiny.md), their mean over 64 by at most 4.4.
    assert seen.answer_tokens == pytest.approx(figure["answer_tokens"], abs=12), seen
    assert seen.passes == pytest.approx(figure["passes_decode"], abs=12), seen
