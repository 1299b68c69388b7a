"""Two slips of published code that `@authors` repeats: worked examples with and without each switch."""

import math

import pytest
import torch

from cases import watch
from reference import Fixed, Settings
from reference import decode as reference_decode
from toys import Toy
from voidpad.decode import plan
from voidpad.decode.authors import AuthorsFactor, AuthorsSampled, DreamLoop
from voidpad.decode.commit import BlockProgress, Factor, Proposed
from voidpad.errors import PlanError
from voidpad.models import DREAM, FAMILIES, LLADA
from voidpad.roles import Roles

ROLES = Roles(mask=0, eos=1)
WORDS = 6


def ended(logits, chosen):
    """One row whose prompt is the token 5."""
    [row] = watch(Toy(logits), [[5]], ROLES, chosen)
    return row


# A block is left after its passes


def stubborn(ids):
    """Slots 0, 2 and 3 know their word; slot 1 wants MASK until slot 3 is written."""
    z = torch.full((len(ids), WORDS), -9.0)
    for slot, word in enumerate([2, 3, 4, 2]):
        z[1 + slot, word] = 3.0 - slot / 10
    if ids[4] == ROLES.mask:
        z[2, ROLES.mask] = 5.0
    return z


def silent(ids):
    """Every slot of the first block wants MASK; the second one knows its words."""
    z = torch.full((len(ids), WORDS), -9.0)
    z[1:3, ROLES.mask] = 5.0
    z[3:, 4] = 5.0
    return z


@pytest.mark.parametrize(
    ("logits", "canvas", "ids"),
    [
        # Dream writes nothing in a block's first pass and all that is left in its second. Slot 1 is then still
        # masked: with the switch the block is left for good, and the canvas keeps the mask.
        (stubborn, 4, [2, 0, 4, 2]),
        # A row is not given up for passes that changed nothing in a block that it has left.
        (silent, 6, [0, 0, 4, 4, 4, 4]),
    ],
)
def test_dream_leaves_a_block_although_mask_was_proposed(logits, canvas, ids):
    """Blocks of two slots, two passes each."""
    left = ended(logits, plan("original@authors", defaults=DREAM.decoding, canvas=canvas, block=2))
    assert (left.ids, left.passes_decode, left.stop_reason) == (ids, canvas, "limit")
    quirks = {"mask_proposable": True, "leave_blocks": True}
    settings = Settings(Fixed(canvas), 2, schedule="dream", score="neg_entropy", **quirks)
    wanted = reference_decode(logits, [5], ROLES, settings)
    assert (wanted.ids, wanted.passes_decode, wanted.stop_reason) == (ids, canvas, "limit")


def test_without_the_switch_decoding_stays_in_the_block():
    """Until the row counts as stalled; where MASK is not proposed, the switch changes nothing."""
    ours = plan("original", defaults=DREAM.decoding, canvas=4, block=2)
    stays = ended(stubborn, ours.replace(propose=AuthorsSampled(**vars(ours.propose))))
    assert (stays.ids, stays.passes_decode, stays.stop_reason) == ([2, 0, 0, 0], 5, "stalled")
    for made in (ours, DreamLoop(**vars(ours))):
        full = ended(stubborn, made)
        assert (full.ids, full.passes_decode, full.stop_reason) == ([2, 3, 4, 2], 4, "full")


# The last candidate of the factor rule


def written(scores, rule):
    score = torch.tensor([[-math.inf, *scores]], dtype=torch.float64)
    frontier = torch.tensor([[False, *[True] * len(scores)]])
    proposed = Proposed(torch.zeros_like(frontier).long(), score, None, frontier)
    return rule(proposed, progress(torch.tensor([len(scores)])))[0, 1:].long().tolist()


def progress(count):
    """Factor asks for none of this."""
    return BlockProgress(*[count] * 3, *[4] * (len(BlockProgress.__dataclass_fields__) - 3))


@pytest.mark.parametrize(
    ("scores", "plain", "slip"),
    [
        # Bars for factor 1: one always, then .667, .75, .8.
        ([0.9, 0.8, 0.78, 0.3], [1, 1, 1, 0], [1, 1, 1, 1]),  # only the last misses: it goes with the others
        ([0.9, 0.8, 0.6, 0.3], [1, 1, 0, 0], [1, 1, 0, 0]),  # two miss: no slip
        ([0.9, 0.8, 0.78, 0.8], [1, 1, 0, 1], [1, 1, 1, 1]),  # the candidates are sorted: .78 is the last
        ([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 1], [1, 1, 1, 1]),  # none misses
        ([0.2, 0.1], [1, 0], [1, 1]),  # of two slots the second is the last
        ([0.2, 0.1, 0.1], [1, 0, 0], [1, 0, 0]),
        ([0.2], [1], [1]),
    ],
)
def test_the_last_candidate_slips_through(scores, plain, slip):
    assert written(scores, Factor()) == plain
    assert written(scores, AuthorsFactor()) == slip


# Where the switches are set


@pytest.mark.parametrize("name", ["original", "void", "void-expansion", "smart-crop"])
def test_only_authors_sets_them(name):
    for family in (LLADA, DREAM, FAMILIES["llada_moe"]):
        ours, theirs = (
            plan(f"{name}{suffix}", defaults=family.decoding, factor=1.0) for suffix in ("", "@authors")
        )
        assert (ours.leaves_blocks, type(ours.commit)) == (False, Factor)
        assert (theirs.leaves_blocks, type(theirs.commit)) == (family is DREAM, AuthorsFactor)
    for loop_of_its_own in ("daedal@authors", "rho-eos@authors"):
        assert not plan(loop_of_its_own, defaults=DREAM.decoding).leaves_blocks


def unsure(ids):
    """Every slot knows its word, none of them well."""
    z = torch.zeros(len(ids), WORDS)
    for slot, word in enumerate([2, 3, 4, 2, 3, 4, 2, 3]):
        z[1 + slot, word] = 2.0 - slot / 10
    return z


def test_a_threshold_leaves_a_block_after_its_steps_in_dream_s_released_loop():
    """Two blocks of four slots and two passes each: a slot a pass is written, the rest stays masked."""
    fields = {"canvas": 8, "block": 4, "threshold": 0.99}
    left = ended(unsure, plan("original@authors", defaults=DREAM.decoding, steps=4, **fields))
    assert (left.passes_decode, left.stop_reason, left.ids.count(ROLES.mask)) == (4, "limit", 4)
    settings = Settings(
        Fixed(8),
        4,
        steps=2,
        commit="threshold",
        tau=0.99,
        mask_proposable=True,
        leave_blocks=True,
        sampling="tempered",
    )
    assert reference_decode(unsure, [5], ROLES, settings).ids == left.ids
    for name, family in (("original", DREAM), ("original", LLADA), ("original@authors", LLADA)):
        with pytest.raises(PlanError) as refused:  # LLaDA's released loop ignores the steps
            plan(name, defaults=family.decoding, steps=4, **fields)
        assert refused.value.field == "steps"
