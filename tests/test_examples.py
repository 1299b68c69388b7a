"""The worked examples of the specification, run through voidpad.decode, and the arithmetic they rest on."""

import itertools
import math

import pytest
import torch

from cases import plan_of, watch
from examples import EXAMPLES, A, B, check, sure
from reference import uniform
from toys import LOW, Chaos, Table, Toy
from voidpad.decode import decode, plan
from voidpad.decode.authors import AuthorsRhoEos
from voidpad.decode.commit import BlockProgress, dream
from voidpad.decode.length import RhoEos
from voidpad.decode.noise import Noise
from voidpad.errors import VoidpadError


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_worked_example(example):
    [seen] = watch(Toy(example.logits), [example.prompt], example.roles, plan_of(example.settings))
    check(example, seen)


# ------------------------------------------------------------------------------------- 2.4: quotas
def test_dream_counts_for_every_block_up_to_599():
    """2.4: with as many steps as slots, the first pass writes nothing and the last one two."""
    for block in (*range(2, 60), *range(60, 600, 7), 599):
        left, counts = block, []
        while left:
            progress = (torch.tensor([number]) for number in (left, block, len(counts)))
            counts.append(int(dream(BlockProgress(*progress, block, block))))
            left -= counts[-1]
        assert counts == [0, *[1] * (block - 2), 2], block


# --------------------------------------------------------------------------------- 2.5, 2.7: refusals
def knows_only(token: int, slot: int):
    """Chaos, but one slot has no finite logit except `token`'s."""
    chaos = Chaos(LOW, 0)

    def logits(ids):
        z = chaos(ids).clone()
        z[1 + slot] = -math.inf
        z[1 + slot, token] = 0.0
        return z

    return Toy(logits)


@pytest.mark.parametrize("only", [LOW.mask, LOW.void], ids=["mask", "void"])
def test_a_slot_without_an_allowed_token_is_last_and_then_an_error(only):
    steps = decode(knows_only(only, 0), [[13]], LOW, plan("void", canvas=4, block=4, stop="vanilla"))
    written = [[slot for slot, _, _ in next(steps).written(0)] for _ in range(3)]
    assert sorted(written) == [[1], [2], [3]]
    with pytest.raises(VoidpadError, match="banned"):
        next(steps)


def test_such_a_slot_behind_the_end_does_no_harm():
    table = Table(lambda canvas: [sure(A, 0.9), sure(LOW.eos, 0.8), {LOW.void: 1.0}], vocab=64)
    [row] = watch(Toy(table), [[5]], LOW, plan("void", canvas=3, block=3))
    assert row.tokens == [A, LOW.eos]


@pytest.mark.parametrize("fields", [{"ban": (99,)}, {"mute": (99,)}])
def test_a_banned_id_outside_the_vocabulary_is_refused(fields):
    with pytest.raises(VoidpadError, match="99"):
        list(decode(Toy(Chaos(LOW, 0)), [[13]], LOW, plan("original", canvas=4, block=4, **fields)))


# ---------------------------------------------------------------------------------- 2.6: temperature
def test_draws_are_the_references_to_the_last_bit():
    where = list(itertools.product((0, 7, 2**40), (0, 3), (0, 9), (0, 5)))  # seed, key, pass, slot
    parts = tuple(torch.tensor(part) for part in zip(*where, strict=True))
    noise = Noise(parts, torch.device("cpu"))
    assert noise.per_slot().tolist() == [uniform(*one, -1) for one in where]
    assert noise.per_token(6).tolist() == [[uniform(*one, v) for v in range(6)] for one in where]


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
    rho = torch.tensor([0.25, 0.05, 0.395, 0.45, 0.61, 0.75, 0.95], dtype=torch.float64)
    assert RhoEos().change(rho).tolist() == [16, 64, 8, 0, -8, -16, -64]


def test_both_roundings_agree_at_the_default_thresholds():
    rho = torch.tensor([k / m for m in range(1, 300) for k in range(m + 1)], dtype=torch.float64)
    assert torch.equal(RhoEos().change(rho), AuthorsRhoEos().change(rho))
