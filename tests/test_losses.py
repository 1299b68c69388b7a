"""Noise and loss: the numbers of spec 1.3 and spec 1.4; noise depends on (seed, epoch, example) alone; the head at loss
slots only."""

import pytest
import torch
import torch.nn.functional as F

from voidpad.models import FAMILIES, random_model
from voidpad.roles import Roles
from voidpad.training.losses import (
    NORMALISERS,
    At,
    NoisedBatch,
    Noising,
    SlotLoss,
    corrupt,
    loss_slots,
    rates,
)
from voidpad.training.padding import Example, pad

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(20, 27)))
ROWS = [Example([5, 6, 7], [8, 9]), Example([5], [8, 9, 10, 11, 12, 13])]
DRAWS = torch.tensor([[0, 0, 0, 0.2, 0.7, 0.9, 0.4, 0.6]])


def at(count, epoch=0):
    index = torch.arange(count)
    return At(torch.full((count,), epoch), index, index)


def many(policy, rows=4000):
    return pad([Example([5], [8] * 6)] * (rows - 1) + [Example([5], [8] * 11)], policy, ROLES)


def test_worked_noise():
    batch = pad(ROWS, "void", ROLES)
    rate = rates(torch.tensor([0.5, 0.25]))
    assert rate.tolist() == pytest.approx([0.5005, 0.25075])
    noised = corrupt(batch, 0, rate=rate, draws=DRAWS.expand(2, -1), forced=True)
    assert noised.ids[0].tolist() == [5, 6, 7, 0, 9, 0, 0, 2]
    assert noised.rate.tolist() == pytest.approx([0.5005, 0.25075])
    assert noised.forced


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize(("policy", "forced"), [("eos", False), ("rainbow", False), ("void", True)])
def test_masking_rate_follows_the_level(policy, forced, stratified):
    batch = many(policy)
    noising = Noising(stratified=stratified)
    where = at(len(batch.ids))
    noised = noising(batch, 0, forced=forced, at=where)
    level = noising.level(where)
    free = batch.target & ~(batch.eos if forced else torch.zeros_like(batch.eos))
    for low in (0.0, 0.25, 0.5, 0.75):
        rows = (level >= low) & (level < low + 0.25)
        rate = noised.hidden[rows][free[rows]].double().mean()
        assert rate == pytest.approx(low + 0.125, abs=0.02)
    assert not noised.hidden[~batch.target].any()
    assert torch.equal(noised.ids == 0, noised.hidden)


def test_forced_eos_is_always_hidden_and_elsewhere_never_forced():
    void, eos = many("void"), many("eos")
    assert Noising()(void, 0, forced=True, at=at(4000)).hidden[void.eos].all()
    share = Noising()(eos, 0, forced=False, at=at(4000)).hidden[eos.eos].double().mean()
    assert share == pytest.approx(0.5, abs=0.03)


def test_expected_weight_is_one_per_slot():
    batch = many("void", rows=20_000)
    noised = Noising(stratified=True)(batch, 0, forced=True, at=at(20_000))
    weight = torch.where(noised.hidden, 1 / noised.rate[:, None], 0.0)
    weight[batch.eos & noised.hidden] = 1
    # The variance of hidden / p is E[1/p] - 1, about 5.9: the mean of 120,000 slots is good to a few per cent.
    response = batch.target & ~batch.eos & ~batch.padding
    assert weight[response].mean() == pytest.approx(1, abs=0.03)
    assert weight[batch.padding].mean() == pytest.approx(1, abs=0.03)
    assert weight[batch.eos].mean() == 1


def test_noise_is_keyed_by_seed_epoch_and_example_not_by_batch():
    batch = many("eos", rows=8)
    whole = Noising(seed=3)(batch, 0, forced=False, at=at(8))
    part = pad([Example([5], [8] * 6)] * 3, "eos", ROLES, width=torch.full((3,), 13))
    index = torch.tensor([5, 2, 4])
    alone = Noising(seed=3)(part, 0, forced=False, at=At(torch.zeros(3, dtype=torch.long), index, index))
    assert torch.equal(whole.hidden[index], alone.hidden)
    assert not torch.equal(whole.hidden, Noising(seed=4)(batch, 0, forced=False, at=at(8)).hidden)
    assert not torch.equal(whole.hidden, Noising(seed=3)(batch, 0, forced=False, at=at(8, epoch=1)).hidden)


def test_stratified_levels_cover_every_run_of_rows():
    where = at(640)
    level = Noising(stratified=True).level(where)
    for first in range(0, 640, 32):
        gaps = level[first : first + 32].sort().values.diff()
        assert gaps.max() < 0.11  # 32 independent draws leave a gap of about 0.13


def test_suffix_rows_hide_the_right_end_in_one_piece():
    batch = many("eos", rows=500)
    hidden = Noising(suffix=1.0)(batch, 0, forced=False, at=at(500)).hidden
    rises = (hidden[:, 1:] & ~hidden[:, :-1]).sum(1)
    assert (rises <= 1).all()
    assert hidden[:, -1].double().mean() > 0.9
    lengths = hidden.sum(1)
    assert lengths.min() <= 1
    assert lengths.max() == 12
    mixed = Noising(suffix=0.3)(batch, 0, forced=False, at=at(500)).hidden
    share = ((mixed == hidden).all(1)).double().mean()
    assert share == pytest.approx(0.3, abs=0.08)


# The loss

# Row 1 of the worked example, and a row 2 whose loss slots are one content slot and the EOS.
LOSS_DRAWS = torch.tensor([[9, 9, 9, 0.2, 0.7, 0.9, 0.4, 0.6], [9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]])
ENTROPY = torch.tensor([1.0, 2.0, 0.3, 0.8, 1.5])


def worked(rows=slice(None), family="llada", shift=0):
    batch = pad(ROWS, "void", ROLES)
    noised = corrupt(batch, 0, rate=rates(torch.tensor([0.5, 0.25])), draws=LOSS_DRAWS, forced=True)
    batch = type(batch)(*(value[rows] for value in vars(batch).values()))
    noised = NoisedBatch(noised.ids[rows], noised.hidden[rows], noised.rate[rows], forced=True)
    return loss_slots(batch, noised, NORMALISERS[FAMILIES[family].loss], shift=shift)


@pytest.mark.parametrize(
    ("family", "rows", "entropy", "expected"),
    [
        ("llada", slice(0, 1), ENTROPY[:3], 0.91948),
        ("llada", slice(1, 2), ENTROPY[3:], 0.67006),
        ("llada", slice(None), ENTROPY, 0.79477),
        ("dream", slice(0, 1), ENTROPY[:3], 1.53247),
        ("dream", slice(None), ENTROPY, 1.85757),
    ],
)
def test_worked_losses(family, rows, entropy, expected):
    slots = worked(rows, family)
    assert (entropy * slots.weight).sum().item() == pytest.approx(expected, abs=5e-6)


def test_slots_know_what_they_are():
    slots = worked()
    assert slots.label.tolist() == [8, 1, 2, 8, 1]
    assert slots.kind.tolist() == [0, 1, 2, 0, 1]


def test_dream_predicts_from_the_slot_before():
    assert worked(slice(0, 1)).where.tolist() == [3, 5, 6]
    assert worked(slice(0, 1), shift=1).where.tolist() == [2, 4, 5]


def test_index_zero_is_never_a_label_under_a_shift():
    batch = pad([Example([], [8, 9])], "eos", ROLES)
    noised = corrupt(batch, 0, rate=torch.ones(1), draws=torch.zeros(1, 3), forced=False)
    assert loss_slots(batch, noised, NORMALISERS["per_slot"], shift=1).label.tolist() == [9, 1]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("piece", [1 << 27, 64 * 3])
def test_slot_entropies_and_gradients_equal_the_full_logits(family, piece):
    net = random_model(family, vocab=64, seed=1).net.double()
    ids = torch.randint(10, 60, (3, 12), generator=torch.Generator().manual_seed(0))
    inside = torch.arange(12)[None] < torch.tensor([12, 7, 9])[:, None]
    where = inside.flatten().nonzero()[::2, 0]
    label = ids.flatten()[where]
    entropy = SlotLoss(net, piece=piece)(ids, where, label, inside)
    entropy.sum().backward()
    slot = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    logits = net(input_ids=ids, attention_mask=inside.long()).logits.flatten(0, 1)[where]
    full = F.cross_entropy(logits.float(), label, reduction="none")
    full.sum().backward()
    assert torch.allclose(entropy, full, atol=1e-6)
    assert all(torch.allclose(slot[name], p.grad, atol=1e-6) for name, p in net.named_parameters())


def test_the_head_sees_loss_slots_only():
    net = random_model(vocab=64).net
    seen = []
    net.lm_head.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    where = torch.tensor([1, 5, 6])
    SlotLoss(net)(torch.full((2, 8), 9), where, torch.full((3,), 9))
    assert seen == [3]


def test_no_loss_slot_gives_a_zero_that_is_connected():
    net = random_model(vocab=64).net
    nothing = torch.zeros(0, dtype=torch.long)
    loss = SlotLoss(net)(torch.full((2, 8), 9), nothing, nothing).sum()
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())
