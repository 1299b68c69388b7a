"""Losses: the numbers of spec 1.4 to five decimals, and the head at loss slots only."""

import pytest
import torch
import torch.nn.functional as F

from voidpad.models import FAMILIES, random_model
from voidpad.roles import Roles
from voidpad.training.losses import NORMALISERS, SlotLoss, loss_slots
from voidpad.training.noising import NoisedBatch, corrupt, rates
from voidpad.training.padding import Example, pad

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(20, 27)))
ROWS = [Example([5, 6, 7], [8, 9]), Example([5], [8, 9, 10, 11, 12, 13])]
# Row 1 of the worked example, and a row 2 whose loss slots are one content slot and the EOS.
DRAWS = torch.tensor([[9, 9, 9, 0.2, 0.7, 0.9, 0.4, 0.6], [9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]])
ENTROPY = torch.tensor([1.0, 2.0, 0.3, 0.8, 1.5])


def worked(rows=slice(None), family="llada", shift=0):
    batch = pad(ROWS, "void", ROLES)
    noised = corrupt(batch, 0, rate=rates(torch.tensor([0.5, 0.25])), draws=DRAWS, forced=True)
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


def test_both_normalisers_agree_on_one_row_with_everything_hidden():
    batch = pad(ROWS[1:], "void", ROLES)
    noised = corrupt(batch, 0, rate=torch.ones(1), draws=torch.zeros(1, 8), forced=True)
    weights = [loss_slots(batch, noised, rule).weight for rule in NORMALISERS.values()]
    assert torch.equal(*weights)
