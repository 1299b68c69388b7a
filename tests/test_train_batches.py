"""Batches are a pure function of their place in the run."""

import random

import pytest
import torch

from voidpad.roles import Roles
from voidpad.training.batches import (
    BatchLayout,
    BatchShare,
    BatchWidth,
    FixedWidth,
    MicroBatches,
    Objective,
    PackedRows,
    PaddedRows,
    VirtualWidth,
    WindowWidth,
)
from voidpad.training.losses import NORMALISERS
from voidpad.training.noising import Noising
from voidpad.training.padding import Example, Pairs, policy

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(3, 10)))
WIDTHS = {
    "batch": BatchWidth(),
    "virtual": VirtualWidth(4),
    "window": WindowWidth(2, 9),
    "fixed": FixedWidth(20),
}


def examples(count=30, seed=0):
    rng = random.Random(seed)
    return [
        Example([100 + k] * rng.randint(1, 4), [50 + k] * rng.randint(1, 9), rng.random() < 0.8)
        for k in range(count)
    ]


def padded(width="virtual", count=30, **layout):
    pairs = Pairs.of(examples(count))
    return PaddedRows(
        pairs, ROLES, policy("void"), noising=Noising(), layout=BatchLayout(WIDTHS[width], **layout)
    )


def batches(rows, share):
    return MicroBatches(
        rows, Noising(), Objective(ROLES.mask, NORMALISERS["per_row"], forced=True), share=share
    )


def rows_of(inputs, width=40):
    """The visible part of every row, as lists."""
    inside = inputs.get("inside", torch.ones_like(inputs["ids"], dtype=torch.bool))
    return [row[mask].tolist() for row, mask in zip(inputs["ids"], inside, strict=True)]


@pytest.mark.parametrize("width", ["virtual", "window", "fixed"])
def test_rows_and_noise_do_not_depend_on_processes_or_micro_batch(width):
    whole = [row for i in range(9) for row in rows_of(batches(padded(width), BatchShare(12, 12))[i])]
    for micro, processes in ((1, 1), (4, 1), (2, 3), (3, 4), (6, 2)):
        runs = [batches(padded(width), BatchShare(12, micro, rank, processes)) for rank in range(processes)]
        steps = 9 * runs[0].share.accumulation
        found = [row for i in range(steps) for run in runs for row in rows_of(run[i])]
        assert found == whole


def test_any_batch_can_be_asked_for_at_any_time():
    one, two = (batches(padded(), BatchShare(12, 4)) for _ in range(2))
    forward = [one[i]["ids"].tolist() for i in range(12)]
    assert [two[i]["ids"].tolist() for i in reversed(range(12))] == forward[::-1]


@pytest.mark.parametrize("group", [0, 6])
def test_an_epoch_shows_every_example_once(group):
    rows = padded(count=30, group=group)
    seen = torch.cat([rows(3, torch.arange(k, k + 6))[1].example for k in range(0, 30, 6)])
    assert sorted(seen.tolist()) == list(range(30))
    assert seen.tolist() != sorted(seen.tolist())
    other = torch.cat([rows(4, torch.arange(k, k + 6))[1].example for k in range(0, 30, 6)])
    assert other.tolist() != seen.tolist()


def test_a_short_epoch_wraps_round():
    run = batches(padded(count=5), BatchShare(4, 4))
    assert run.updates_per_epoch == 2
    assert len(rows_of(run[1])) == 4


def test_grouping_orders_an_updates_rows_by_width_and_leaves_the_update_alone():
    plain, grouped = padded(), padded(group=10)
    for first in range(0, 30, 10):
        position = torch.arange(first, first + 10)
        one, two = plain(0, position)[1].example, grouped(0, position)[1].example
        assert set(one.tolist()) == set(two.tolist())
        widths = grouped._width(0, two)
        assert torch.equal(widths, widths.sort().values)


def test_extra_columns_for_the_compiler_are_invisible():
    one, two = batches(padded(), BatchShare(6, 6)), batches(padded(multiple=16), BatchShare(6, 6))
    assert two[0]["ids"].shape[1] % 16 == 0
    assert rows_of(one[0]) == rows_of(two[0])
    for name in ("label", "weight", "kind"):
        assert torch.equal(one[0][name], two[0][name])


def test_no_mask_is_passed_when_every_slot_is_visible():
    pairs = Pairs.of([Example([5], [6, 7])] * 4)
    rows = PaddedRows(pairs, ROLES, policy("void"), noising=Noising(), layout=BatchLayout(FixedWidth(9)))
    assert "inside" not in batches(rows, BatchShare(4, 4))[0]


def stream(order, store):
    """The plain writer of a packed epoch."""
    ids = []
    for k in order:
        ids += [*store[k].prompt, *store[k].response, *([ROLES.eos] if store[k].complete else [])]
    return ids


def test_packed_rows_are_the_stream_cut_in_pieces():
    store = examples()
    rows = PackedRows(Pairs.of(store), ROLES, length=16, seed=1, layout=BatchLayout(align=False))
    order = rows.stream(0)[0].tolist()
    text = stream(order, store)
    batch, _ = rows(0, torch.arange(rows.count))
    assert batch.ids.flatten().tolist() == text[: rows.count * 16]
    assert batch.target.all()
    assert torch.equal(batch.eos, batch.ids == ROLES.eos)


def test_aligned_rows_begin_with_a_whole_document():
    store = examples()
    rows = PackedRows(Pairs.of(store), ROLES, length=16, seed=1, layout=BatchLayout())
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
    rows = PackedRows(Pairs.of(examples(200)), ROLES, length=32, seed=1, layout=BatchLayout())
    run = MicroBatches(
        rows, Noising(), Objective(ROLES.mask, NORMALISERS["per_row"]), share=BatchShare(30, 30)
    )
    inputs = run[0]
    assert (inputs["label"] >= 100).any()  # prompt tokens
    assert (inputs["label"] == ROLES.eos).any()
