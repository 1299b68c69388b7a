"""Batches are a pure function of their place in the run."""

import random

import pytest
import torch

from voidpad.roles import Roles
from voidpad.training.batches import BatchShare, PackedRows, PaddedRows, PassLimit, UpdatePasses
from voidpad.training.losses import Objective
from voidpad.training.prepared import Example, Pairs
from voidpad.training.recipe import PaddingPart

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(3, 10)))
WIDTHS = {
    "batch": PaddingPart(),
    "window": PaddingPart(width="window", window=(2, 9)),
    "fixed": PaddingPart(width=20),
}


def examples(count=30, seed=0):
    rng = random.Random(seed)
    return [
        Example([100 + k] * rng.randint(1, 4), [50 + k] * rng.randint(1, 9), rng.random() < 0.8)
        for k in range(count)
    ]


def padded(width="window", count=30):
    return PaddedRows(Pairs.of(examples(count)), ROLES, WIDTHS[width], seed=42)


def batches(rows, share, **limit):
    return UpdatePasses(rows, Objective(ROLES.mask, forced=True), share, PassLimit(**limit))


def rows_of(passes):
    """The visible part of every row of an update, as lists in order of their ids."""
    found = []
    for one in passes:
        inside = torch.ones_like(one.ids, dtype=torch.bool) if one.inside is None else one.inside
        found += [row[mask].tolist() for row, mask in zip(one.ids, inside, strict=True)]
    return sorted(found)


@pytest.mark.parametrize("width", ["window", "fixed"])
def test_rows_and_noise_do_not_depend_on_processes_or_micro_batch(width):
    whole = [rows_of(batches(padded(width), BatchShare(12, 12))[update]) for update in range(9)]
    for micro, processes in ((1, 1), (4, 1), (2, 3), (3, 4), (6, 2)):
        shares = [BatchShare(12, micro, rank, processes) for rank in range(processes)]
        places = [share.rows(share.rank).view(-1, micro) for share in shares]
        assert torch.equal(torch.stack(places, 1).flatten(), torch.arange(12))
        runs = [batches(padded(width), share) for share in shares]
        found = [sorted(row for run in runs for row in rows_of(run[update])) for update in range(9)]
        assert found == whole


def test_any_batch_can_be_asked_for_at_any_time():
    one, two = (batches(padded(), BatchShare(12, 4)) for _ in range(2))

    def ids(run, update):
        return [one.ids.tolist() for one in run[update]]

    forward = [ids(one, update) for update in range(12)]
    assert [ids(two, update) for update in reversed(range(12))] == forward[::-1]


def test_an_epoch_shows_every_example_once():
    rows = padded(count=30)
    one, two = (
        rows.batch(epoch, torch.arange(30), torch.full((30,), 9))[1].example.tolist() for epoch in (3, 4)
    )
    assert sorted(one) == sorted(two) == list(range(30))
    assert one != two != list(range(30)) != one


def test_extra_columns_for_the_compiler_are_invisible():
    one, two = batches(padded(), BatchShare(6, 6)), batches(padded(), BatchShare(6, 6), multiple=16)
    assert all(part.ids.shape[1] % 16 == 0 for part in two[0])
    assert rows_of(one[0]) == rows_of(two[0])
    for name in ("label", "weight", "kind"):
        assert torch.equal(*(torch.cat([getattr(part.slots, name) for part in run[0]]) for run in (one, two)))


def test_packed_rows_begin_with_a_whole_document_and_noise_reaches_prompts():
    store = examples(200)
    rows = PackedRows(Pairs.of(store), ROLES, 16, seed=42)
    text, starts = [], []  # the plain writer of a packed epoch
    for k in rows.documents(0)[0].tolist():
        starts.append(len(text))
        text += [*store[k].prompt, *store[k].response, *([ROLES.eos] if store[k].complete else [])]
    batch, _ = rows.batch(0, torch.arange(rows.count), torch.full((rows.count,), 16))
    for number, row in enumerate(batch.ids.tolist()):
        begin = max(start for start in starts if start <= number * 16)
        assert row == text[begin : begin + 16]
    run = UpdatePasses(rows, Objective(ROLES.mask), BatchShare(30, 30), PassLimit())
    label = torch.cat([one.slots.label for one in run[0]])
    assert (label >= 100).any()  # prompt tokens
    assert (label == ROLES.eos).any()
