"""Padding policies: the numbers of spec 1.1-1.2, and laws against a plain per-token writer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from voidpad.errors import DataError, RoleError
from voidpad.roles import Roles
from voidpad.training import prepared
from voidpad.training.batches import PaddedRows, row_widths
from voidpad.training.losses import Objective
from voidpad.training.padding import pad
from voidpad.training.prepared import Example, Pairs
from voidpad.training.recipe import PaddingPart

ROLES = Roles(mask=0, eos=1, void=2, rainbow=tuple(range(20, 27)))
ROWS = [Example([5, 6, 7], [8, 9]), Example([5], [8, 9, 10, 11, 12, 13])]
POLICIES = ("eos", "rainbow", "void")


@pytest.mark.parametrize("name", POLICIES)
def test_worked_example(name):
    cycle = {"eos": [1, 1], "void": [2, 2], "rainbow": [20, 21]}[name]
    batch = pad(ROWS, name, ROLES)
    assert batch.ids.tolist() == [[5, 6, 7, 8, 9, 1, *cycle], [5, 8, 9, 10, 11, 12, 13, 1]]
    assert batch.slots.tolist() == [5, 7]  # L_{B,k}
    assert batch.padding.sum(1).tolist() == [2, 0]
    assert batch.eos.nonzero().tolist() == [[0, 5], [1, 7]]
    # The authors' collator leaves the longest row without an EOS, except under VOID padding.
    theirs, width = pad(ROWS, name, ROLES, longest_row_gets_eos=False), 8 if name == "void" else 7
    assert torch.equal(theirs.ids, batch.ids[:, :width])
    assert theirs.eos.sum(1).tolist() == [1, int(name == "void")]


def plain(row, name, width):
    """One row, token by token."""
    ids = [*row.prompt, *row.response]
    if row.complete:
        ids.append(ROLES.eos)
        for j in range(width - len(ids)):
            ids.append({"eos": 1, "void": 2, "rainbow": 20 + j % 7}[name])
    return ids[:width]


tokens = st.lists(st.integers(30, 99), min_size=1, max_size=9)
examples = st.lists(st.builds(Example, tokens, tokens, st.booleans()), min_size=1, max_size=6)


@given(examples, st.sampled_from(POLICIES), st.integers(-9, 5))
@settings(max_examples=60, deadline=None)
def test_every_row_is_the_plain_writers(rows, name, extra):
    """Also where a row is too narrow for its answer, which is then cut, without an EOS."""
    longest = max(len(row.prompt) + len(row.response) + 1 for row in rows)
    width = max(longest + extra, *(len(row.prompt) for row in rows))
    batch = pad(rows, name, ROLES, width=torch.full((len(rows),), width))
    for k, row in enumerate(rows):
        expected = plain(row, name, width)
        assert batch.ids[k, : len(expected)].tolist() == expected
        assert batch.inside[k].sum() == len(expected)
        kinds, text = batch.eos[k].int() + batch.padding[k].int(), len(row.prompt) + len(row.response)
        assert kinds.max() <= 1
        assert kinds.nonzero().flatten().tolist() == list(range(text, len(expected)))
        assert batch.target[k].sum() == batch.slots[k] == len(expected) - len(row.prompt)


@given(examples)
@settings(max_examples=30, deadline=None)
def test_policies_differ_in_the_padding_and_nothing_else(rows):
    batches = [pad(rows, name, ROLES) for name in POLICIES]
    first = batches[0]
    for batch in batches[1:]:
        assert torch.equal(batch.target, first.target)
        assert torch.equal(batch.eos, first.eos)
        assert torch.equal(batch.ids[~batch.padding], first.ids[~first.padding])


def widths(prompt, rows, draws, **part):
    """Of examples with these prompt lengths and no response; nobody reads their tokens."""
    none = torch.zeros_like(prompt)
    return row_widths(PaddingPart(**part), Pairs(torch.empty(0), prompt, none, none == 0), rows, draws)


def test_window_width_covers_its_range_evenly():
    draws, prompt = (torch.arange(1000) + 0.5) / 1000, torch.full((1000,), 7)
    found = widths(prompt, torch.arange(1000), draws, width="window", window=(2, 5))
    assert [part.tolist() for part in found.unique(return_counts=True)] == [[9, 10, 11, 12], [250] * 4]


def test_a_missing_role_is_named():
    for name in ("void", "rainbow"):
        with pytest.raises(RoleError, match=name):
            pad(ROWS, name, Roles(mask=0, eos=1))


GAPS = [Example([5, 6], [7, 8, 9, 10, 11], fixed=[(0, 1), (3, 5)]), Example([5], [8, 9])]


def test_fixed_parts_of_an_answer_are_given_and_nothing_follows_them():
    """Infilling: `prefix span suffix`; the span alone is learnt, and the row ends with its text."""
    batch = pad(GAPS, "void", ROLES, width=torch.tensor([7, 9]))
    assert batch.ids[0, :7].tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert batch.target[0].nonzero().flatten().tolist() == [3, 4]
    assert batch.inside[0].tolist() == [True] * 7 + [False] * 2
    assert not batch.eos[0].any()
    assert batch.slots.tolist() == [2, 8]
    assert batch.target[1].nonzero().flatten().tolist() == list(range(1, 9))
    with pytest.raises(DataError, match="fixed"):
        Pairs.of([Example([5], [8, 9], fixed=[(1, 3)])])


@pytest.mark.parametrize("part", [{}, {"width": "window", "window": (1, 3)}, {"width": 9}])
def test_a_row_with_gaps_is_as_wide_as_its_text(tmp_path, part):
    """Whatever the others are padded to; and only its gaps are ever hidden."""
    prepared.write(tmp_path / "x.safetensors", Pairs.of(GAPS * 4), ROLES)
    pairs = prepared.read(tmp_path / "x.safetensors").pairs
    rows = PaddedRows(pairs, ROLES, PaddingPart(**part), seed=42)
    for epoch in range(5):
        width, end = rows.lengths(epoch, torch.arange(8), 4)
        batch, origin = rows.batch(epoch, torch.arange(8), width)
        gaps = origin.example % 2 == 0
        assert (end[gaps] == 7).all()
        noised = Objective(ROLES.mask, forced=True).noise(batch, origin)
        assert noised.hidden[gaps].any(0).nonzero().flatten().tolist() in ([3, 4], [3], [4], [])
        assert torch.equal(noised.ids[gaps][:, [0, 1, 2, 5, 6]], batch.ids[gaps][:, [0, 1, 2, 5, 6]])
