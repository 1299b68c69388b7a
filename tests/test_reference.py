"""The reference itself: the worked examples of the specification, and the arithmetic it rests on."""

import math

import pytest

import reference
from examples import EXAMPLES, check
from reference import Fixed, Rho, Settings
from toys import LOW, Chaos


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_worked_example(example):
    check(example, reference.decode(example.logits, example.prompt, example.roles, example.settings))


def test_dream_counts_with_as_many_steps_as_slots():
    """2.4: 0, 1, ..., 1, 2. Every block up to 599 is voidpad's to prove; exact fractions are slow."""
    for block in (*range(2, 40), 64, 128, 599):
        left, counts = block, []
        for step in range(block):
            share = reference.dream_quota(left, block, step)
            counts.append(left if share is None else share)
            left -= counts[-1]
        assert counts == [0, *[1] * (block - 2), 2], block


def test_rho_edits_of_the_specification():
    rule = Rho()
    found = {rho: reference.edit(rule, rho) for rho in (0.25, 0.05, 0.395, 0.45, 0.61, 0.75, 0.95)}
    assert found == {0.25: 16, 0.05: 64, 0.395: 8, 0.45: 0, 0.61: -8, 0.75: -16, 0.95: -64}


def test_both_roundings_agree_at_the_default_thresholds():
    for m in (*range(1, 60), 128, 299):
        for k in range(m + 1):
            assert reference.edit(Rho(), k / m) == reference.edit(Rho(rounding="float32"), k / m)


def test_draws_are_uniform_and_their_own():
    draws = [
        reference.uniform(7, key, number, slot, v)
        for key in range(6)
        for number in range(6)
        for slot in range(6)
        for v in range(-1, 5)
    ]
    assert len(set(draws)) == len(draws)
    assert all(0 < u < 1 for u in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 4 / math.sqrt(12 * len(draws))


def test_a_slot_without_an_allowed_token_errs_only_when_it_is_committed():
    z = Chaos(LOW, 0)

    def logits(ids):
        out = z(ids).clone()
        out[3, [v for v in range(out.shape[1]) if v != LOW.mask]] = -math.inf  # the last slot knows only MASK
        return out

    settings = Settings(Fixed(4), 4, steps=2, eos_stop=True)
    with pytest.raises(ValueError, match="slot 2"):
        reference.decode(logits, [13], LOW, settings)
    with pytest.raises(ValueError, match="does not fit"):
        reference.decode(z, [13], LOW, Settings(reference.Expansion(9, 8, 2, 0.1, 0.0), 4))
