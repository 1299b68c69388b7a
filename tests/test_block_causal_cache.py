"""The cache of finished blocks is exact: cached decoding is uncached decoding, alone and in a ragged batch."""

import random
from dataclasses import replace

import pytest
import torch

from networks import decoded, shapes, tiny
from voidpad.decode import Plan, advance, begin, wanted
from voidpad.engine.batching import Engine
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import FinishedBlocks
from voidpad.engine.packed import PackedDenoiser
from voidpad.errors import ConfigError
from voidpad.models import FAMILIES, Model

NAMES = [name for name, family in FAMILIES.items() if family.causal_block]
EVERY = pytest.mark.parametrize("name", NAMES)


def cached(model: Model, bucket: int = 1) -> CachedDenoiser:
    block = model.card.causal_block
    return CachedDenoiser(model.denoiser(), block, FinishedBlocks(block), bucket=bucket)


def drawn(rng: random.Random, model: Model) -> Plan:
    preset = rng.choice(list(model.family.decoding.presets))
    block = model.card.causal_block
    fields: dict = {"canvas": rng.randint(1, 4 * block), "temperature": rng.choice([0.0, 0.0, 0.8])}
    if preset == "small-blocks":
        fields |= {"block": rng.choice([n for n in range(1, block + 1) if block % n == 0]), "high": 0.3}
    elif preset == "editing":
        fields |= {
            "threshold": rng.choice([0.1, 0.3]),
            "edit_threshold": 0.1,
            "edit_passes": rng.randint(1, 4),
        }
    else:
        fields |= {"steps": rng.randint(1, block)}
    return model.plan(preset, **fields)


def prompts(rng: random.Random, block: int) -> list[list[int]]:
    return [
        [rng.randrange(11, 16) for _ in range(rng.choice([block, rng.randint(1, 3 * block)]))]
        for _ in range(rng.randint(1, 5))
    ]


SEEDS = [range(5), pytest.param(range(100, 160), marks=pytest.mark.slow)]


@EVERY
@pytest.mark.parametrize("seeds", SEEDS, ids=["5 cases", "60 cases"])
def test_cached_decoding_is_uncached_decoding(name, seeds):
    reasons = set()
    for seed in seeds:
        rng = random.Random(seed)
        model = tiny(name, seed, dtype=torch.float32, causal_block=rng.choice([1, 2, 3, 4, 6]))
        rows, chosen = prompts(rng, model.card.causal_block), drawn(rng, model)
        limits = {"rows": rng.choice([2, 32]), "tokens": rng.choice([30, 10**6])}
        plain = decoded(Engine(model.denoiser(), model.roles, **limits), rows, chosen, seed=seed)
        packed = decoded(
            Engine(PackedDenoiser(model.denoiser()), model.roles, **limits), rows, chosen, seed=seed
        )
        store = cached(model, bucket=rng.choice([1, 16]))
        kept = decoded(Engine(store, model.roles, **limits, ended=store.forget), rows, chosen, seed=seed)
        usual = decoded(model.engine(**limits), rows, chosen, seed=seed)
        assert plain == packed == kept == usual, seed
        assert store.entries == {}
        for key, row in enumerate(rows):
            alone = model.engine()
            alone.submit(row, chosen, seed=seed, key=key)
            [(_, outcome)] = alone.outcomes()
            assert replace(outcome, seconds=0.0) == plain[key]
        reasons |= {row.stop_reason for row in plain}
    assert reasons == {"eos", "full"}


@pytest.mark.parametrize(("name", "dtype", "limit"), [
    *((name, torch.float32, 2e-5) for name in NAMES),
    *((name, torch.float64, 1e-12) for name in NAMES if not FAMILIES[name].experts),
])  # fmt: skip
def test_cached_logits_are_the_plain_ones(name, dtype, limit):
    """Pass by pass, with slots that an observer reads beside those of the open block."""
    rng = random.Random(1)
    model = tiny(name, 3, dtype=dtype, causal_block=3, ends=0)
    plans = [model.plan(canvas=12)]
    if "editing" in model.family.decoding.presets:  # the last pass over a block replaces tokens
        always = {"threshold": 0.0, "edit_threshold": 0.0, "edit_passes": 1}
        plans.append(model.plan("editing", canvas=12, **always))
    store, plain, draws = cached(model), model.denoiser(), torch.Generator().manual_seed(1)
    for number, chosen in enumerate(plans):
        keys = range(3 * number, 3 * number + 3)
        rows = begin([[12] * n for n in (1, 3, 7)], model.roles, chosen, keys=keys, seeds=[0] * 3)
        passes = 0
        while len(rows):
            where = wanted(rows, chosen)
            if rng.random() < 0.3:
                where = where | (rows.slots & (torch.rand(where.shape, generator=draws) < 0.3))
            logits = store(rows, where)
            assert (logits - plain(rows, where)).abs().max() <= limit
            rows = advance(rows, chosen, where, logits).live
            passes += 1
        assert passes > 8


@EVERY
def test_a_pass_computes_the_open_block_and_what_was_open_before(name):
    model = tiny(name, 0, dtype=torch.float32, causal_block=4, ends=0)
    chosen = model.plan(canvas=12, **({"high": 1.0, "block": 4} if name == "fast_dllm" else {}))
    with shapes(model) as seen:
        [outcome] = decoded(model.engine(), [[12] * 9], chosen)
    assert outcome.canvas == 15
    # SDAR's first pass in a block also computes the block before it; Fast-dLLM's first slot needs that block alone.
    entering = 4 if name == "fast_dllm" else 8
    assert [shape[1] for shape in seen] == [12, 4, 4, *[entering, 4, 4, 4] * 3]
    assert len(seen) == outcome.passes_decode == 15


@EVERY
def test_caches_of_full_attention_are_refused(name):
    model = tiny(name, 0, dtype=torch.float32, causal_block=4)
    with pytest.raises(ConfigError, match="dual"):
        model.generate("hi", cache="dual", canvas=4)
    assert model.approximations(model.plan()) == ()
