"""Noise and loss: the numbers of spec 1.3 and spec 1.4; noise depends on (seed, epoch, example) alone; the head at loss
slots only."""

import pytest
import torch
import torch.nn.functional as F

from voidpad.models import FAMILIES, random_model
from voidpad.roles import Roles
from voidpad.training.losses import NoisedBatch, Objective, Origin, SlotLoss
from voidpad.training.padding import pad
from voidpad.training.prepared import Example

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(20, 27)))
ROWS = [Example([5, 6, 7], [8, 9]), Example([5], [8, 9, 10, 11, 12, 13])]


def origin(count, epoch=0):
    return Origin(epoch, torch.arange(count), torch.arange(count))


def many(policy, rows=4000):
    return pad([Example([5], [8] * 6)] * (rows - 1) + [Example([5], [8] * 11)], policy, ROLES)


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize(("policy", "forced"), [("eos", False), ("rainbow", False), ("void", True)])
def test_masking_rate_follows_the_level(policy, forced, stratified):
    batch, rows = many(policy), origin(4000)
    objective = Objective(0, forced=forced, stratified=stratified)
    noised, level = objective.noise(batch, rows), objective.level(rows)
    free = batch.target & ~(batch.eos if forced else torch.zeros_like(batch.eos))
    for low in (0.0, 0.25, 0.5, 0.75):
        chosen = (level >= low) & (level < low + 0.25)
        rate = noised.hidden[chosen][free[chosen]].double().mean()
        assert rate == pytest.approx(low + 0.125, abs=0.02)
    assert not noised.hidden[~batch.target].any()
    assert torch.equal(noised.ids == 0, noised.hidden)
    share = noised.hidden[batch.eos].double().mean()
    assert share == (1 if forced else pytest.approx(0.5, abs=0.03))


def test_expected_weight_is_one_per_slot():
    batch = many("void", rows=20_000)
    noised = Objective(0, forced=True, stratified=True).noise(batch, origin(20_000))
    weight = torch.where(noised.hidden, 1 / noised.rate[:, None], 0.0)
    weight[batch.eos & noised.hidden] = 1
    # The variance of hidden / p is E[1/p] - 1, about 5.9: the mean of 120,000 slots is good to a few per cent.
    response = batch.target & ~batch.eos & ~batch.padding
    assert weight[response].mean() == pytest.approx(1, abs=0.03)
    assert weight[batch.padding].mean() == pytest.approx(1, abs=0.03)
    assert weight[batch.eos].mean() == 1


def test_noise_is_keyed_by_seed_epoch_and_example_not_by_batch():
    batch, three, four = many("eos", rows=8), Objective(0, seed=3), Objective(0, seed=4)
    whole = three.noise(batch, origin(8))
    part = pad([Example([5], [8] * 6)] * 3, "eos", ROLES, width=torch.full((3,), 13))
    index = torch.tensor([5, 2, 4])
    assert torch.equal(whole.hidden[index], three.noise(part, Origin(0, index, index)).hidden)
    for other in (four.noise(batch, origin(8)), three.noise(batch, origin(8, epoch=1))):
        assert not torch.equal(whole.hidden, other.hidden)


def test_stratified_levels_cover_every_run_of_rows():
    for levels in Objective(0, stratified=True).level(origin(640)).split(32):
        assert levels.sort().values.diff().max() < 0.11  # 32 independent draws leave a gap of about 0.13


def test_suffix_rows_hide_the_right_end_in_one_piece():
    batch = many("eos", rows=500)
    hidden, mixed = (Objective(0, suffix=share).noise(batch, origin(500)).hidden for share in (1.0, 0.3))
    rises = (hidden[:, 1:] & ~hidden[:, :-1]).sum(1)
    assert (rises <= 1).all()
    assert hidden[:, -1].double().mean() > 0.9
    assert (hidden.sum(1).min() <= 1, hidden.sum(1).max()) == (True, 12)
    assert (mixed == hidden).all(1).double().mean() == pytest.approx(0.3, abs=0.08)


# The worked examples of the spec; the second row's loss slots are one content slot and the EOS.
DRAWS = torch.tensor([[9, 9, 9, 0.2, 0.7, 0.9, 0.4, 0.6], [9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]])
ENTROPY = torch.tensor([1.0, 2.0, 0.3, 0.8, 1.5])


def worked(family="llada", shift=0):
    objective = Objective(0, FAMILIES[family].loss, shift, forced=True)
    batch = pad(ROWS, "void", ROLES)
    return objective, batch, objective.hide(batch, torch.tensor([0.5, 0.25]), DRAWS)


def test_worked_noise():
    _, _, noised = worked()
    assert noised.ids[0].tolist() == [5, 6, 7, 0, 9, 0, 0, 2]
    assert noised.rate.tolist() == pytest.approx([0.5005, 0.25075])


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
    objective, *parts = worked(family)
    batch, noised = (type(part)(*(value[rows] for value in vars(part).values())) for part in parts)
    slots = objective.loss_slots(batch, noised)
    assert (entropy * slots.weight).sum().item() == pytest.approx(expected, abs=5e-6)


def test_slots_know_what_they_are_and_dream_predicts_from_the_slot_before():
    for shift in (0, 1):
        objective, *parts = worked(shift=shift)
        slots = objective.loss_slots(*parts)
        assert slots.label.tolist() == [8, 1, 2, 8, 1]
        assert slots.kind.tolist() == [0, 1, 2, 0, 1]
        assert (slots.where[:3] + shift).tolist() == [3, 5, 6]
    batch = pad([Example([], [8, 9])], "eos", ROLES)
    everything = NoisedBatch(torch.zeros_like(batch.ids), batch.target, torch.ones(1))
    slots = Objective(0, "per_slot", shift=1).loss_slots(batch, everything)
    assert slots.label.tolist() == [9, 1]  # nothing stands before index 0


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


def test_the_head_sees_loss_slots_only_and_none_gives_a_zero_that_is_connected():
    net, seen = random_model(vocab=64).net, []
    net.lm_head.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    for where in (torch.tensor([1, 5, 6]), torch.zeros(0, dtype=torch.long)):
        loss = SlotLoss(net)(torch.full((2, 8), 9), where, torch.full_like(where, 9)).sum()
    assert seen == [3, 0]
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())
