"""The likelihood bound: exact where it can be, unbiased, and independent of the batch."""

import itertools
import math

import pytest
import torch
from lm_eval.api.instance import Instance

from voidpad.errors import ConfigError
from voidpad.evaluate.likelihood import Bound, estimate, hide
from voidpad.evaluate.lm_eval import VoidpadLM
from voidpad.models import random_model


@pytest.fixture(scope="module", params=["llada", "dream"])
def model(request):
    return random_model(request.param, vocab=110, context=64, dtype=torch.float64)


def every_hiding(size: int) -> torch.Tensor:
    """Each count of hidden places equally often, each subset of that count equally often: the expectation."""
    rows = []
    for count in range(1, size + 1):
        subsets = list(itertools.combinations(range(size), count))
        repeats = math.lcm(*(math.comb(size, k) for k in range(1, size + 1))) // len(subsets)
        for subset in subsets:
            row = [place in subset for place in range(size)]
            rows += [row] * repeats
    return torch.tensor(rows)


def test_context_free_probabilities_give_the_exact_likelihood(model):
    """A denoiser that ignores its context: the bound is log p itself, sample by sample, for equal tokens."""
    table = torch.randn(110, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pair = ([12, 13], [20, 20, 20])
    rng = torch.Generator().manual_seed(0)
    found = estimate(
        lambda canvas, where: table.repeat(int(where.sum()), 1), model.roles, pair, hide(3, 5, rng), tokens=99
    )
    assert found == pytest.approx(3 * float(table.log_softmax(0)[20]))


def test_samples_approach_the_expectation(model):
    pair = ([12, 13, 14], [20, 31, 22])
    exact = estimate(model.denoiser(), model.roles, pair, every_hiding(3), tokens=1 << 16)
    few, many = (Bound(model, samples=count, seed=3)._estimate(pair) for count in (64, 4096))
    assert many == pytest.approx(exact, rel=0.01)
    assert few == pytest.approx(exact, rel=0.1)


def test_hidden_counts_are_spread_evenly():
    counts = hide(5, 50, torch.Generator().manual_seed(0)).sum(1)
    assert torch.bincount(counts, minlength=6).tolist() == [0, 10, 10, 10, 10, 10]


def test_the_batch_does_not_matter(model):
    texts = [("the cat", " sat"), ("one", " two three"), ("the cat", " ran")]
    together = Bound(model, samples=8).pairs(texts)
    alone = [Bound(model, samples=8, tokens=1).pairs([text])[0] for text in texts]
    assert [ll for ll, _ in together] == pytest.approx([ll for ll, _ in alone])
    assert [greedy for _, greedy in together] == [greedy for _, greedy in alone]


def test_the_greedy_continuation_is_recognised(model):
    bound = Bound(model, samples=1)
    plan = model.plan("original", canvas=5, block=5, steps=5, cut=False)
    (result,) = model.generate(["ab"], plan, raw=True)
    assert bound._greedy([(model.encode("ab", raw=True), result.ids), ([12], [20, 21])]) == [True, False]


def test_spaces_between_the_parts_belong_to_the_continuation(model):
    bound = Bound(model)
    assert bound._split("a ", "b") == bound._split("a", " b")
    assert bound._split("", "b")[0] == [model.roles.eos]


def test_long_contexts_lose_their_beginning_and_long_continuations_are_refused(model):
    bound = Bound(model, samples=2)
    assert bound.pairs([("a" * 100 + "b" * 62, "cd")]) == bound.pairs([("z" * 9 + "b" * 62, "cd")])
    for text in ("", "c" * 64):
        with pytest.raises(ConfigError, match=f"continuation of {len(text)} tokens"):
            bound.pairs([("a", text)])


def test_rolling_counts_every_token_once(model, monkeypatch):
    seen = []
    monkeypatch.setattr(Bound, "_estimate", lambda bound, pair: seen.append(pair) or -1.0)
    assert Bound(model).texts(["x" * 150]) == [-len(seen)]
    assert sum(len(continuation) for _, continuation in seen) == 150
    assert all(len(context) + len(continuation) <= 64 for context, continuation in seen)


def test_lm_eval_asks_for_it(model):
    lm = VoidpadLM(model, plan="original", canvas=16, block=8, mc_samples=4)
    ask = Instance("loglikelihood", {}, ("the cat", " sat"), 0, ("t", 0, 1))
    ((value, greedy),) = lm.loglikelihood([ask])
    assert value < 0
    assert greedy is False
    assert (
        lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("the cat",), 0, ("t", 0, 1))])[0] < 0
    )
