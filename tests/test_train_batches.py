"""Batches are a pure function of their place in the run."""

import random

import pytest
import torch

from voidpad.roles import Roles
from voidpad.training.batches import BatchShare, Objective, PackedRows, PaddedRows, PassLimit, UpdatePasses
from voidpad.training.losses import NORMALISERS, Noising
from voidpad.training.padding import Example, Pairs
from voidpad.training.recipe import PaddingPart

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(3, 10)))
WIDTHS = {
    "batch": PaddingPart(),
    "virtual": PaddingPart(width="virtual", virtual_batch=4),
    "window": PaddingPart(width="window", window=(2, 9)),
    "fixed": PaddingPart(width=20),
}


def examples(count=30, seed=0):
    rng = random.Random(seed)
    return [
        Example([100 + k] * rng.randint(1, 4), [50 + k] * rng.randint(1, 9), rng.random() < 0.8)
        for k in range(count)
    ]


def padded(width="virtual", count=30):
    pairs = Pairs.of(examples(count))
    return PaddedRows(pairs, ROLES, WIDTHS[width], noising=Noising())


def batches(rows, share, **limit):
    goal = Objective(ROLES.mask, NORMALISERS["per_row"], forced=True)
    return UpdatePasses(rows, goal, share, PassLimit(**limit))


def rows_of(passes):
    """The visible part of every row of an update, as lists in order of their ids."""
    found = []
    for one in passes:
        inside = torch.ones_like(one.ids, dtype=torch.bool) if one.inside is None else one.inside
        found += [row[mask].tolist() for row, mask in zip(one.ids, inside, strict=True)]
    return sorted(found)


@pytest.mark.parametrize("width", ["virtual", "window", "fixed"])
def test_rows_and_noise_do_not_depend_on_processes_or_micro_batch(width):
    whole = [rows_of(batches(padded(width), BatchShare(12, 12))[update]) for update in range(9)]
    for micro, processes in ((1, 1), (4, 1), (2, 3), (3, 4), (6, 2)):
        shares = [BatchShare(12, micro, rank, processes) for rank in range(processes)]
        places = [share.rows().view(-1, micro) for share in shares]
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
    seen = torch.cat([rows(3, torch.arange(k, k + 6))[1].example for k in range(0, 30, 6)])
    assert sorted(seen.tolist()) == list(range(30))
    assert seen.tolist() != sorted(seen.tolist())
    other = torch.cat([rows(4, torch.arange(k, k + 6))[1].example for k in range(0, 30, 6)])
    assert other.tolist() != seen.tolist()


def test_extra_columns_for_the_compiler_are_invisible():
    one, two = batches(padded(), BatchShare(6, 6)), batches(padded(), BatchShare(6, 6), multiple=16)
    assert all(one.ids.shape[1] % 16 == 0 for one in two[0])
    assert rows_of(one[0]) == rows_of(two[0])
    for name in ("label", "weight", "kind"):
        assert torch.equal(*(torch.cat([getattr(part, name) for part in run[0]]) for run in (one, two)))


def test_no_mask_is_passed_when_every_slot_is_visible():
    pairs = Pairs.of([Example([5], [6, 7])] * 4)
    rows = PaddedRows(pairs, ROLES, PaddingPart(width=9), noising=Noising())
    (one,) = batches(rows, BatchShare(4, 4))[0]
    assert one.inside is None


def stream(order, store):
    """The plain writer of a packed epoch."""
    ids = []
    for k in order:
        ids += [*store[k].prompt, *store[k].response, *([ROLES.eos] if store[k].complete else [])]
    return ids


def test_aligned_rows_begin_with_a_whole_document():
    store = examples()
    rows = PackedRows(Pairs.of(store), ROLES, 16, noising=Noising())
    text = stream(rows.stream(0)[0].tolist(), store)
    starts, position = set(), 0
    for k in rows.stream(0)[0].tolist():
        starts.add(position)
        position += len(store[k].prompt) + len(store[k].response) + store[k].complete
    batch, _ = rows(0, torch.arange(rows.count))
    for number, row in enumerate(batch.ids.tolist()):
        begin = max(start for start in starts if start <= number * 16)
        assert row == text[begin : begin + 16]


def test_packed_noise_reaches_prompts():
    rows = PackedRows(Pairs.of(examples(200)), ROLES, 32, noising=Noising())
    goal = Objective(ROLES.mask, NORMALISERS["per_row"])
    run = UpdatePasses(rows, goal, BatchShare(30, 30), PassLimit())
    label = torch.cat([one.label for one in run[0]])
    assert (label >= 100).any()  # prompt tokens
    assert (label == ROLES.eos).any()
