"""Templates with gaps: fixed text stays, gaps are filled together, and a gap at the end is ordinary decoding."""

import random

import pytest

from cases import case, watch
from toys import LOW, SEPARATOR, Chaos, Toy, World, words
from voidpad.decode import Plan, plan
from voidpad.engine.batching import Engine
from voidpad.errors import ConfigError, PlanError
from voidpad.models import FAMILIES, random_model

M = LOW.mask
RULES = [
    {},
    {"threshold": 0.4},
    {"factor": 1.0},
    {"entropy_bound": 0.7},
    {"temperature": 1.0},
    {"score": "margin"},
]
both = pytest.mark.parametrize("family", ["llada", "dream"])
every_rule = pytest.mark.parametrize("fields", RULES, ids=str)
seeded = pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 15), marks=pytest.mark.slow)], ids=["some", "more"]
)


def template(rng: random.Random) -> list[int]:
    """A prompt, then gaps and fixed words in turn; an EOS may stand in the fixed text."""
    fixed = [*words(LOW), LOW.eos]
    ids = [rng.choice(fixed) for _ in range(rng.randrange(4))] + [SEPARATOR[LOW]]
    for _ in range(rng.choice([1, 2, 3])):
        ids += [M] * rng.randrange(1, 5)
        ids += [rng.choice(fixed) for _ in range(rng.randrange(4))]
    return ids


def made(ids: list[int], family: str, **fields) -> Plan:
    slots = ids.count(M)
    return plan("void", defaults=FAMILIES[family].decoding, canvas=slots, block=slots, **fields).for_gaps(
        ids, LOW
    )


def toys(seed: int):
    return [Toy(Chaos(LOW, seed, 4.0, ((LOW.eos, 3.0), (LOW.void, 3.0)))), Toy(World(LOW, seed, "void"))]


@both
@every_rule
@seeded
def test_fixed_text_stays_and_every_gap_is_full(family, fields, seeds):
    for seed in seeds:
        ids = template(random.Random(seed))
        for toy in toys(seed):
            [row] = watch(toy, [ids], LOW, made(ids, family, **fields), seed=seed)
            filled = ids[: ids.index(M)] + row.ids
            assert [one for one, before in zip(filled, ids, strict=True) if before != M] == [
                token for token in ids if token != M
            ]
            written = [token for gap in row.gaps for token in gap]
            assert written == [one for one, before in zip(filled, ids, strict=True) if before == M]
            assert not {M, LOW.eos, LOW.void} & set(written)
            assert (row.tokens, row.stop_reason, row.canvas) == (row.ids, "full", len(row.ids))
            start = ids.index(M)
            for state in row.states:
                assert all(before in (M, now) for before, now in zip(ids[start:], state, strict=True))


@both
@every_rule
@seeded
def test_a_batch_of_gaps_equals_single_ones(family, fields, seeds):
    for seed in seeds:
        rng = random.Random(seed)
        first, second, third = (template(rng) for _ in range(3))
        some = [first, [*first[:-1], first[-1]], first]
        chosen = made(first, family, **fields)
        for toy in toys(seed):
            together = watch(toy, some, LOW, chosen, seed=seed)
            engine = Engine(toy, LOW, rows=2, tokens=60)
            handles = {
                engine.submit(ids, made(ids, family, **fields), seed=seed, key=key): key
                for key, ids in enumerate((first, second, third))
            }
            mixed = {handles[handle]: outcome for handle, outcome in engine.outcomes()}
            for key, ids in enumerate((first, second, third)):
                [alone] = watch(toy, [ids], LOW, made(ids, family, **fields), seed=seed, keys=[key])
                assert (mixed[key].ids, mixed[key].gaps) == (alone.ids, alone.gaps)
                assert mixed[key].passes_decode == alone.passes_decode
            [alone] = watch(toy, [first], LOW, chosen, seed=seed, keys=[1])
            assert alone.outcome == together[1].outcome


@both
@every_rule
@seeded
def test_a_gap_at_the_end_is_ordinary_decoding(family, fields, seeds):
    for seed in seeds:
        rng = random.Random(seed)
        prompt = [rng.choice(words(LOW)) for _ in range(rng.randrange(4))] + [SEPARATOR[LOW]]
        slots = rng.randrange(1, 9)
        ids = [*prompt, *[M] * slots]
        ordinary = plan(
            "void", defaults=FAMILIES[family].decoding, canvas=slots, block=slots, ban=(LOW.eos, LOW.void),
            stop="vanilla", cut=False, **fields,
        )  # fmt: skip
        for toy in toys(seed):
            [gap] = watch(toy, [ids], LOW, made(ids, family, **fields), seed=seed)
            [usual] = watch(toy, [prompt], LOW, ordinary, seed=seed)
            assert (gap.ids, gap.passes_decode, gap.stop_reason) == (
                usual.ids,
                usual.passes_decode,
                usual.stop_reason,
            )
            assert gap.commits == usual.commits
            assert gap.gaps == (tuple(usual.ids),)


@both
def test_a_real_network_sees_the_text_behind_a_gap(family):
    model = random_model(family, seed=3)
    mask, words = model.roles.mask, model.encode("abcdefg", raw=True)
    ids = [*words[:3], mask, mask, *words[3:5], mask, *words[5:]]
    chosen = model.plan("void", canvas=3, block=3).for_gaps(ids, model.roles)
    engine = model.engine()
    engine.submit(ids, chosen)
    [(_, packed)] = engine.outcomes()
    [row] = watch(model.denoiser(), [ids], model.roles, chosen)
    assert (packed.ids, packed.gaps) == (row.ids, row.gaps)
    assert [len(gap) for gap in row.gaps] == [2, 1]
    assert row.ids[2:4] == words[3:5]


def test_templates_and_plans_that_cannot_be_filled_are_refused():
    chosen = plan("void", canvas=2, block=2)
    for ids in ([5, 6], [M, 5]):
        with pytest.raises(PlanError):
            chosen.for_gaps(ids, LOW)
        with pytest.raises(ConfigError):
            list(watch(Toy(Chaos(LOW, 0)), [ids], LOW, chosen.replace(fill=True)))
    for name in ("void-expansion", "daedal", "smart-crop"):
        with pytest.raises(PlanError) as refused:
            plan(name).replace(fill=True)
        assert refused.value.field == "fill"
    assert case(0).plan.fill is False


@both
@pytest.mark.parametrize("steps", [32, 16])
def test_gaps_are_filled_at_the_pace_of_a_block(family, steps):
    ids = [SEPARATOR[LOW], *[M] * 12, words(LOW)[0], *[M] * 8]
    chosen = plan("void", defaults=FAMILIES[family].decoding, canvas=32, block=8, steps=steps).for_gaps(
        ids, LOW
    )
    [row] = watch(Toy(Chaos(LOW, 1, 4.0, ())), [ids], LOW, chosen)
    assert row.passes_decode == 20 * steps // 32
