"""The worked examples of the specification, by the reference and by voidpad.decode, and the arithmetic behind them."""

import itertools
import math

import pytest
import torch

import reference
from cases import plan_of, watch
from examples import EXAMPLES, A, B, check, sure
from reference import Fixed, Rho, Settings
from toys import LOW, Chaos, Table, Toy
from voidpad.decode import decode, plan
from voidpad.decode.authors import AuthorsRhoEos
from voidpad.decode.commit import BlockProgress, dream
from voidpad.decode.length import RhoEos
from voidpad.decode.noise import Noise
from voidpad.errors import VoidpadError


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_worked_example(example):
    check(example, reference.decode(example.logits, example.prompt, example.roles, example.settings))
    [seen] = watch(Toy(example.logits), [example.prompt], example.roles, plan_of(example.settings))
    check(example, seen)


# ------------------------------------------------------------------------------------- 2.4: quotas
def test_dream_counts_with_as_many_steps_as_slots():
    """2.4: the first pass writes nothing and the last one two; the reference's exact fractions are slow."""

    def ours(left: int, block: int, step: int) -> int:
        progress = (torch.tensor([number]) for number in (left, block, step))
        return int(dream(BlockProgress(*progress, block, block)))

    def exact(left: int, block: int, step: int) -> int:
        share = reference.dream_quota(left, block, step)
        return left if share is None else share

    for quota, blocks in (
        (ours, [*range(2, 60), *range(60, 600, 7)]),
        (exact, [*range(2, 40), 64, 128, 599]),
    ):
        for block in blocks:
            left, counts = block, []
            for step in range(block):
                counts.append(quota(left, block, step))
                left -= counts[-1]
            assert counts == [0, *[1] * (block - 2), 2], block


# --------------------------------------------------------------------------------- 2.5, 2.7: refusals
@pytest.mark.parametrize("only", [LOW.mask, LOW.void], ids=["mask", "void"])
def test_a_slot_without_an_allowed_token_is_last_and_then_an_error(only):
    def logits(ids):
        z = Chaos(LOW, 0)(ids).clone()
        z[1] = -math.inf
        z[1, only] = 0.0
        return z

    steps = decode(Toy(logits), [[13]], LOW, plan("void", canvas=4, block=4, stop="vanilla"))
    written = [[slot for slot, _, _ in next(steps).written(0)] for _ in range(3)]
    assert sorted(written) == [[1], [2], [3]]
    with pytest.raises(VoidpadError, match="banned"):
        next(steps)
    with pytest.raises(ValueError, match="slot 0"):
        reference.decode(logits, [13], LOW, Settings(Fixed(4), 4, ban=(LOW.void,)))


def test_such_a_slot_behind_the_end_does_no_harm():
    table = Table(lambda canvas: [sure(A, 0.9), sure(LOW.eos, 0.8), {LOW.void: 1.0}], vocab=64)
    [row] = watch(Toy(table), [[5]], LOW, plan("void", canvas=3, block=3))
    assert row.tokens == [A, LOW.eos]


@pytest.mark.parametrize("fields", [{"ban": (99,)}, {"mute": (99,)}])
def test_a_banned_id_outside_the_vocabulary_is_refused(fields):
    with pytest.raises(VoidpadError, match="99"):
        list(decode(Toy(Chaos(LOW, 0)), [[13]], LOW, plan("original", canvas=4, block=4, **fields)))


# ---------------------------------------------------------------------------------- 2.6: temperature
def test_draws_are_the_references_to_the_last_bit_uniform_and_their_own():
    where = list(itertools.product((0, 7, 2**40), range(4), range(6), range(6)))  # seed, key, pass, slot
    parts = tuple(torch.tensor(part) for part in zip(*where, strict=True))
    noise = Noise(parts, torch.device("cpu"))
    assert noise.per_slot().tolist() == [reference.uniform(*one, -1) for one in where]
    tokens = noise.per_token(6)
    assert tokens.tolist() == [[reference.uniform(*one, v) for v in range(6)] for one in where]
    draws = [*noise.per_slot().tolist(), *noise.per_path().tolist(), *tokens.flatten().tolist()]
    assert len(set(draws)) == len(draws)
    assert all(0 < u < 1 for u in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 4 / math.sqrt(12 * len(draws))


# ------------------------------------------------------------------------------------ 0.2: ties
def test_ties_go_to_the_smaller_id_and_the_smaller_slot():
    table = Table(lambda canvas: [{B: 0.5, A: 0.5}] * len(canvas))
    [row] = watch(Toy(table), [[5]], LOW, plan("original", canvas=6, block=6, steps=3))
    assert [[commit[:2] for commit in one] for one in row.commits] == [
        [(0, A), (1, A)],
        [(2, A), (3, A)],
        [(4, A), (5, A)],
    ]


# -------------------------------------------------------------------------------------- 6: rho-EOS
def test_rho_edits_of_the_specification():
    edits = {0.25: 16, 0.05: 64, 0.395: 8, 0.45: 0, 0.61: -8, 0.75: -16, 0.95: -64}
    assert {rho: reference.edit(Rho(), rho) for rho in edits} == edits
    assert RhoEos().change(torch.tensor([*edits], dtype=torch.float64)).tolist() == [*edits.values()]


def test_both_roundings_agree_at_the_default_thresholds():
    every = [k / m for m in range(1, 300) for k in range(m + 1)]
    rho = torch.tensor(every, dtype=torch.float64)
    assert torch.equal(RhoEos().change(rho), AuthorsRhoEos().change(rho))
    for one in every[::50]:
        assert reference.edit(Rho(), one) == reference.edit(Rho(rounding="float32"), one)
