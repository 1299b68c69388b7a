"""LLaDA2.1's editing: written tokens of the open block may be replaced, and are final once the block is left."""

import random

import pytest
import torch

from block_causal import llada21
from cases import watch
from test_block_causal_decoding import ROLES, BlockChaos
from toys import VOCAB, Toy
from voidpad.decode import Plan, describe
from voidpad.decode.commit import BlockProgress, Editing, Proposed
from voidpad.engine.batching import Engine
from voidpad.engine.events import Finished, Wrote
from voidpad.errors import PlanError
from voidpad.models import FAMILIES
from voidpad.models.families.family import Family


def case(number: int):
    """A random network, prompts and settings; thresholds are low, so that most passes replace something."""
    rng = random.Random(number)
    roles, block = rng.choice(ROLES), rng.choice([1, 2, 3, 4, 6, 8])
    words = [token for token in range(VOCAB) if token not in (roles.mask, *roles.ends)]
    prompts = [
        [rng.choice(words) for _ in range(rng.randint(1, 3 * block))] for _ in range(rng.choice([1, 2, 4]))
    ]
    lean = (*((token, rng.choice([-19.0, -1.0, 0.5])) for token in roles.ends), (roles.mask, -1.0))
    logits = BlockChaos(rng.randrange(10**6), block, 0, rng.choice([2.0, 8.0]), lean)
    fields = {
        "threshold": rng.choice([0.2, 0.5, 0.9]),
        "edit_threshold": rng.choice([0.0, 0.2, 0.5, 1.0]),
        "edit_passes": rng.choice([1, 2, 5, 16]),
        "canvas": rng.randint(1, 4 * block),
    }
    return roles, block, prompts, logits, fields


def plan_of(block: int, fields: dict) -> Plan:
    family: Family = FAMILIES["llada2"]
    defaults = family.decoding.__class__(**(vars(family.decoding) | {"causal_block": block}))
    return describe("editing", fields, defaults=defaults)[0]


@pytest.mark.parametrize("numbers", [range(60), pytest.param(range(60, 400), marks=pytest.mark.slow)])
def test_the_plan_is_the_releases_loop(numbers):
    replaced, reasons = 0, set()
    for number in numbers:
        roles, block, prompts, logits, fields = case(number)
        plan = plan_of(block, fields)
        for key, (prompt, seen) in enumerate(
            zip(prompts, watch(Toy(logits), prompts, roles, plan), strict=True)
        ):
            settings = {name: value for name, value in fields.items() if name != "canvas"}
            ids, tokens, passes = llada21(
                logits, prompt, mask=roles.mask, ends=set(roles.ends), block=block,
                slots=fields["canvas"], **settings,
            )  # fmt: skip
            assert (seen.ids, seen.tokens, seen.passes_decode) == (ids, tokens, passes), (number, key)
            [alone] = watch(Toy(logits), [prompt], roles, plan, keys=[key])
            assert alone.outcome == seen.outcome
            replaced += sum(len(commits) for commits in seen.commits) > len(ids)
            reasons.add(seen.stop_reason)
    assert replaced > len(numbers) // 4
    assert reasons == {"eos", "full"}


def test_what_is_called_final_never_changes():
    """Streaming sends the final prefix only; it ends where the open block starts."""
    grown = 0
    for number in range(30):
        roles, block, prompts, logits, fields = case(number)
        engine = Engine(Toy(logits), roles)
        handles = [engine.submit(prompt, plan_of(block, fields)) for prompt in prompts]
        sent: dict[int, list[list[int]]] = {handle: [] for handle in handles}
        for event in engine.events():
            if isinstance(event, Wrote):
                for row, (handle, final) in enumerate(zip(event.handles, event.final_prefix, strict=True)):
                    sent[handle].append(event.after.answer(row)[:final])
            elif isinstance(event, Finished):
                ids = event.outcome.ids
                assert all(part == ids[: len(part)] and roles.mask not in part for part in sent[event.handle])
                grown += len({len(part) for part in sent[event.handle]}) > 1
    assert grown > 10


def test_editing_needs_block_causal_attention():
    with pytest.raises(PlanError) as refused:
        Plan(commit=Editing())
    assert refused.value.field == "commit"


def test_a_written_slot_is_replaced_above_its_own_threshold_only():
    proposed = Proposed(
        tokens=torch.tensor([[5, 6, 7, 8]]),
        score=torch.tensor([[0.6, 0.6, 0.4, 0.6]]).double(),
        entropy=None,
        frontier=torch.tensor([[True] * 4]),
        present=torch.tensor([[9, 6, 9, -1]]),
    )
    none = torch.zeros(1, dtype=torch.long)
    chosen = Editing(threshold=0.7, edit_threshold=0.5)(proposed, BlockProgress(none, none, none, 4, 4))
    assert chosen.tolist() == [[True, False, False, True]]  # the last one is the surest mask
