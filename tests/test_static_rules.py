"""Rules compute with static shapes and never read the device: under fake tensors, and on a GPU that refuses to wait."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from toys import LOW
from voidpad.decode import propose
from voidpad.decode.authors import AuthorsFactor, AuthorsGumbel, AuthorsSampled
from voidpad.decode.commit import (
    BlockProgress,
    Dynamic,
    EntropyBound,
    Factor,
    HighConfidence,
    Proposed,
    Sequential,
    Static,
    Threshold,
    TopK,
)
from voidpad.decode.noise import Noise
from voidpad.decode.propose import (
    Bans,
    EosPenalty,
    GumbelProposal,
    MaskLast,
    SampledProposal,
    TemperedProposal,
    marked,
)
from voidpad.decode.rows import Rows
from voidpad.decode.stop import AfterBlock, EndsTermination, EosTermination, Vanilla

B, W, V = 3, 5, 14
COMMITS = [TopK(), TopK(schedule="dream"), TopK(position_decay=0.3), Threshold(), HighConfidence(), Static()]
COMMITS += [
    Factor(),
    AuthorsFactor(),
    EntropyBound(),
    EntropyBound(entropy_order="entropy"),
    Dynamic(),
    Sequential(),
]
PROPOSALS = [kind(score=score, temperature=t) for kind in (GumbelProposal, TemperedProposal, AuthorsGumbel)
             for score in ("confidence", "neg_entropy", "margin", "random") for t in (0.0, 0.7)]  # fmt: skip
PROPOSALS += [SampledProposal(temperature=t, top_p=0.9, top_k=3) for t in (0.0, 0.7)] + [
    AuthorsSampled(),
    MaskLast(),
]
STOPS = [Vanilla(), EosTermination(), EndsTermination(), AfterBlock(block=4)]


def proposed(device) -> Proposed:
    numbers = torch.rand(B, W, dtype=torch.float64, device=device)
    return Proposed(torch.ones(B, W, dtype=torch.long, device=device), numbers, numbers, numbers > 0.3)


def progress(device, steps) -> BlockProgress:
    count = torch.ones(B, dtype=torch.long, device=device)
    return BlockProgress(count * 3, count * 4, count, steps, W)


def noise(device, slots: int) -> Noise:
    part = torch.arange(slots, device=device)
    return Noise((part, part, part, part), torch.device(device))


def rows(device) -> Rows:
    zero = torch.zeros(B, dtype=torch.long, device=device)
    ids = torch.zeros(B, 9, dtype=torch.long, device=device)
    return Rows.of(ids, zero + 2, zero + 9, LOW, key=zero)


def by_row(rule, count: int, device):
    """The rule with a value for each row or slot in place of its numbers."""
    floats = {name: value for name, value in vars(rule).items() if isinstance(value, float)}
    full = {name: torch.full((count, 1), v, dtype=torch.float64, device=device) for name, v in floats.items()}
    return rule.with_tensors(**full)


def run_everything(device) -> None:
    """Every rule once, with numbers and with a value for each row."""
    for rule in COMMITS:
        assert rule(proposed(device), progress(device, 4)).shape == (B, W)
        steps = torch.full((B,), 4, device=device)
        assert by_row(rule, B, device)(proposed(device), progress(device, steps)).shape == (B, W)
    logits = torch.randn(B * W, V, device=device)
    bans = Bans.of((LOW.eos,), (LOW.void,), LOW.mask, V, logits.device)
    for rule in PROPOSALS:
        for one in (rule, by_row(rule, B * W, device)):
            found = one(logits, bans, noise(device, B * W), entropy=rule.gives_entropy)
            assert found.tokens.shape == found.score.shape == (B * W,)
    for rule in STOPS:
        assert rule(rows(device)).shape == (B,)
    for annealing in ("constant", "linear", "dream-coder"):
        penalty = EosPenalty(eos_annealing=annealing)
        assert penalty(torch.rand(B, dtype=torch.float64, device=device)).shape == (B,)
    assert rows(device).advance(4).block_start.shape == (B,)


def test_no_rule_reads_the_device_or_has_a_shape_that_depends_on_values():
    marked.cache_clear()
    try:
        with FakeTensorMode():
            with pytest.raises(DataDependentOutputException):  # what a rule that reads a value gets
                bool(torch.rand(2).max() > 0)
            run_everything("cpu")
    finally:
        marked.cache_clear()


def test_no_proposal_marks_tokens_of_its_own(monkeypatch):
    """A mask made inside a rule would be sent while a graph is captured, or compiled into it."""
    bans = Bans.of((LOW.eos,), (LOW.void,), LOW.mask, V, torch.device("cpu"))
    monkeypatch.setattr(propose, "marked", None)
    for rule in PROPOSALS:
        rule(torch.randn(B * W, V), bans, noise("cpu", B * W), entropy=rule.gives_entropy)


@pytest.mark.gpu
def test_no_rule_makes_the_host_wait():
    run_everything("cuda")  # ids of bans are sent once
    torch.cuda.set_sync_debug_mode("error")
    try:
        run_everything("cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_a_value_for_each_row_gives_what_the_number_gives(temperature):
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(1))
    bans = Bans.of((LOW.eos,), (LOW.void,), LOW.mask, V, logits.device)
    for rule in (
        GumbelProposal(temperature=temperature),
        TemperedProposal(temperature=temperature),
        SampledProposal(temperature=temperature, top_p=0.8, score="confidence"),
    ):
        both = (rule, by_row(rule, 6, "cpu"))
        alone, rowwise = (one(logits, bans, noise("cpu", 6), entropy=True) for one in both)
        assert alone.tokens.tolist() == rowwise.tokens.tolist()
        assert torch.equal(alone.score, rowwise.score)
        assert torch.equal(alone.entropy, rowwise.entropy)
