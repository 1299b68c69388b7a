"""Muon against torch's own, and the shape of the schedule."""

from itertools import pairwise

import pytest
import torch

from voidpad.models import random_model
from voidpad.training.optim import Muon, optimizers, orthogonal, rate_factor
from voidpad.training.recipe import OptimPart


def test_muon_equals_torchs_own_up_to_its_bfloat16():
    shapes = [(8, 8), (8, 8), (12, 8), (8, 12)]
    start = torch.Generator().manual_seed(9)
    ours = [torch.nn.Parameter(torch.randn(shape, generator=start)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    one = Muon(ours, lr=0.02, momentum=0.95, weight_decay=0.1)
    two = torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        one.step()
        two.step()
    for p, q in zip(ours, theirs, strict=True):
        assert (p - q).abs().max() < 2e-3  # updates are about 0.02 * 0.2 * 3 each


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 24, 16), (2, 16, 24)])
def test_orthogonal_flattens_the_singular_values(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_muon_takes_the_layers_matrices_and_adamw_the_rest():
    net = random_model().net
    adamw, muon = optimizers(net, OptimPart(name="muon", lr=1e-3, muon_lr=5e-3, weight_decay=0.3))
    assert len(muon.param_groups[0]["params"]) == 2 * 7
    names = {id(p): name for name, p in net.named_parameters()}
    decayed, plain = ([names[id(p)] for p in group["params"]] for group in adamw.param_groups)
    assert decayed == ["model.embed_tokens.weight", "lm_head.weight"]
    assert all("norm" in name for name in plain)
    groups = [*muon.param_groups, *adamw.param_groups]
    found = [(group["weight_decay"], group["lr"], group["initial_lr"]) for group in groups]
    assert found == [(0.3, 5e-3, 5e-3), (0.3, 1e-3, 1e-3), (0.0, 1e-3, 1e-3)]


def test_schedule_rises_stays_and_falls():
    part = OptimPart(warmup=0.1, decay=0.4)
    values = [rate_factor(part, k / 100) for k in range(101)]
    assert values[5] == pytest.approx(0.5)
    assert values[10:61] == pytest.approx([1.0] * 51)
    assert values[100] == 0
    assert all(a >= b for a, b in pairwise(values[60:]))
    assert {rate_factor(OptimPart(), k / 10) for k in range(11)} == {1.0}  # by default it is constant
