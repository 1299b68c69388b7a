"""The plans of block-causal families against plain statements of the releases' loops, alone and in ragged batches.

LLaDA2.1 edits: written tokens of the open block may be replaced, and are final once the block is left.
"""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from block_causal import fast_dllm, llada21, sdar
from cases import watch
from toys import VOCAB, Toy, field_of
from voidpad.decode import Plan, decode, describe
from voidpad.decode.commit import Editing
from voidpad.engine.batching import Engine
from voidpad.engine.events import Finished, Wrote
from voidpad.errors import PlanError
from voidpad.models import FAMILIES
from voidpad.roles import Roles

ROLES = [Roles(mask=0, eos=1, ends=(1, 3), void=2), Roles(mask=13, eos=11, ends=(9, 11), void=10)]


@dataclass(frozen=True)
class BlockChaos:
    """Aligned logits of a random block-causal network: a hash of the row up to the end of the block."""

    seed: int
    block: int
    shift: int
    scale: float
    lean: tuple[tuple[int, float], ...]

    def __call__(self, ids: list[int]) -> Tensor:
        raw = np.empty((len(ids), VOCAB))
        for start in range(0, len(ids), self.block):
            seen = ids[: start + self.block]
            raw[start : start + self.block] = self.scale * field_of(
                (len(seen) - start, VOCAB), self.seed, *seen
            )
        for token, amount in self.lean:
            raw[:, token] += amount
        return torch.from_numpy(np.roll(raw, self.shift, 0))


@dataclass(frozen=True)
class Case:
    logits: BlockChaos
    roles: Roles
    prompts: list[list[int]]
    preset: str
    fields: dict
    block: int
    family: str

    @property
    def plan(self) -> Plan:
        family = FAMILIES[self.family].decoding
        return describe(self.preset, self.fields, defaults=replace(family, causal_block=self.block))[0]

    def expected(self, prompt: list[int]) -> tuple[list[int], list[int], int]:
        fields, roles = self.fields, self.roles
        common = {"mask": roles.mask, "ends": set(roles.ends), "block": self.block, "slots": fields["canvas"]}
        if self.preset == "editing":
            names = ("threshold", "edit_threshold", "edit_passes")
            return llada21(self.logits, prompt, **common, **{name: fields[name] for name in names})
        if self.preset == "small-blocks":
            more = {"small": fields["block"], "threshold": fields["high"]}
            return fast_dllm(self.logits, prompt, **common, **more)
        more = {"steps": fields["steps"], "rule": self.preset, "threshold": fields.get("threshold", 1.0)}
        return sdar(self.logits, prompt, **common, **more)


SDAR = ("static", "dynamic", "sequential")
FAST = ("small-blocks",)
LLADA2 = ("dynamic",)
EDITING = ("editing",)
FAMILY = {SDAR: "sdar", FAST: "fast_dllm", LLADA2: "llada2", EDITING: "llada2"}


def case(number: int, presets: tuple[str, ...]) -> Case:
    """A random model, prompts and plan of the family of these presets."""
    rng, family = random.Random(number), FAMILY[presets]
    roles, preset = rng.choice(ROLES), presets[number % len(presets)]
    block = rng.choice([1, 2, 3, 4, 4, 6, 8])
    words = [token for token in range(VOCAB) if token not in (roles.mask, *roles.ends)]
    sizes = [rng.randint(1, 3 * block) for _ in range(rng.choice([1, 2, 3, 4]))]
    if number % 4 == 0:
        sizes[0] = block * rng.randint(1, 2)  # the prompt ends with a block
    prompts = [[rng.choice(words) for _ in range(size)] for size in sizes]
    divisors = [size for size in range(1, block + 1) if block % size == 0]
    fields: dict = {"canvas": rng.randint(1, 4 * block)}
    scale, mask = rng.choice([2.0, 8.0, 20.0]), rng.choice([-3.0, 1.0])
    if preset == "editing":  # low thresholds, so that most passes replace something
        fields |= {
            "threshold": rng.choice([0.2, 0.5, 0.9]),
            "edit_threshold": rng.choice([0.0, 0.2, 0.5, 1.0]),
        }
        fields["edit_passes"] = rng.choice([1, 2, 5, 16])
        scale, mask = min(scale, 8.0), -1.0
    elif preset == "small-blocks":
        fields |= {"block": rng.choice(divisors), "high": rng.choice([0.2, 0.4, 0.8, 1.0])}
    elif family == "llada2":
        fields |= {"steps": rng.choice(divisors)}
    else:
        fields |= {"steps": rng.randint(1, block + 2)}
    if preset == "dynamic":
        fields |= {"threshold": rng.choice([0.2, 0.4, 0.8, 1.0])}
    pulled = tuple((token, rng.choice([-19.0, -1.0, 0.5])) for token in roles.ends)
    shift = 1 if preset == "small-blocks" else 0
    logits = BlockChaos(rng.randrange(10**6), block, shift, scale, (*pulled, (roles.mask, mask)))
    return Case(logits, roles, prompts, preset, fields, block, family)


SLOW = [pytest.param(presets, range(1000, 1300), marks=pytest.mark.slow) for presets in FAMILY]


@pytest.mark.parametrize(("presets", "numbers"), [*((presets, range(30)) for presets in FAMILY), *SLOW])
def test_plans_are_the_releases_loops(presets, numbers):
    """Every row of every case is what the release's loop writes, in company and alone."""
    reasons, shared, multiple = set(), 0, 0
    for number in numbers:
        c = case(number, presets)
        together = watch(Toy(c.logits), c.prompts, c.roles, c.plan)
        for key, (prompt, seen) in enumerate(zip(c.prompts, together, strict=True)):
            ids, tokens, passes = c.expected(prompt)
            assert (seen.ids, seen.tokens, seen.passes_decode) == (ids, tokens, passes), (number, key)
            assert seen.stop_reason == ("eos" if set(tokens) & set(c.roles.ends) else "full"), number
            assert (len(prompt) + seen.canvas) % c.block == 0
            [alone] = watch(Toy(c.logits), [prompt], c.roles, c.plan, keys=[key])
            assert alone.outcome == seen.outcome
            reasons.add(seen.stop_reason)
            shared += len(prompt) % c.block > 0
            replaced = sum(len(commits) for commits in seen.commits) > len(ids)
            multiple += replaced if presets == EDITING else passes < len(tokens)
    assert reasons == {"eos", "full"}
    assert min(shared, multiple) > len(numbers) // 8


def test_what_is_called_final_while_blocks_are_edited_never_changes():
    """Streaming sends the final prefix only; it ends where the open block starts."""
    grown = 0
    for number in range(30):
        c = case(number, EDITING)
        engine = Engine(Toy(c.logits), c.roles)
        sent: dict[int, list[list[int]]] = {engine.submit(prompt, c.plan): [] for prompt in c.prompts}
        for event in engine.events():
            if isinstance(event, Wrote):
                for row, (handle, final) in enumerate(zip(event.handles, event.final_prefix, strict=True)):
                    sent[handle].append(event.after.answer(row)[:final])
            elif isinstance(event, Finished):
                ids = event.outcome.ids
                assert all(part == ids[: len(part)] for part in sent[event.handle])
                assert all(c.roles.mask not in part for part in sent[event.handle])
                grown += len({len(part) for part in sent[event.handle]}) > 1
    assert grown > 10


def test_editing_needs_block_causal_attention():
    with pytest.raises(PlanError) as refused:
        Plan(commit=Editing())
    assert refused.value.field == "commit"


@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_the_first_slot_of_a_block_is_written_alone_and_greedily(temperature):
    drawn = 0
    for number in range(8):
        c = case(number, FAST)
        chosen = replace(c, fields=c.fields | {"temperature": temperature, "top_p": 0.95}).plan
        for column, token, best, count in commits(c, chosen):
            if column % c.block == 0:
                assert (token, count) == (best, 1)
            else:
                drawn += token != best
    assert (drawn > 0) == (temperature > 0)


def commits(c: Case, chosen: Plan):
    """Position, token and greedy token of every commit, and how many slots its row wrote in that pass."""
    for step in decode(Toy(c.logits), c.prompts, c.roles, chosen, seed=3):
        for row, (start, stop) in enumerate(
            zip(step.before.prompt.tolist(), step.before.stop.tolist(), strict=True)
        ):
            z = c.logits(step.before.ids[row, :stop].tolist()).clone()
            z[:, c.roles.mask] = -np.inf
            written = step.written(row)
            for slot, token, _ in written:
                yield start + slot, token, int(z[start + slot].argmax()), len(written)


def test_the_quota_is_that_of_a_whole_block():
    """A block of 4 in 3 passes writes 2, 1, 1; three prompt tokens in the block do not change its first pass."""
    roles = ROLES[0]
    toy = Toy(BlockChaos(1, 4, 0, 2.0, ((1, -9.0), (3, -9.0))))
    plan = Case(toy.logits, roles, [], "static", {"canvas": 8, "steps": 3}, 4, "sdar").plan
    seen = watch(toy, [[5, 6, 7, 8], [5, 6]], roles, plan)
    assert [[len(commits) for commits in row.commits] for row in seen] == [
        [2, 1, 1, 2, 1, 1],
        [2, 2, 1, 1, 2, 1, 1],
    ]
