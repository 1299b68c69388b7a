"""Key-value caches: what a policy recomputes, what the store holds, and that rows never read each other's keys."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from networks import BOTH, half_filled, ragged, results, shapes, tiny
from voidpad.decode import plan
from voidpad.engine import packed
from voidpad.engine.batching import Engine
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import CachePolicy
from voidpad.engine.events import Finished
from voidpad.models import FAMILIES, Model

TEXTS = ("prefix", "prefix:3", "dual", "dual:3", "prompt", "prompt:2", "ahead:2")
CACHES = pytest.mark.parametrize("cache", TEXTS)


def cached_by(model: Model, cache: str, block: int = 4, **fields) -> CachedDenoiser:
    return CachedDenoiser(model.denoiser(), block, CachePolicy.parse(cache), **fields)


# ------------------------------------------------------------------------------------------- policies
@BOTH
def test_a_cache_that_recomputes_everything_is_exact(family):
    for seed in range(2):
        model, prompts = tiny(family, seed), ragged(random.Random(seed), 4)
        blocks = model.plan("void", canvas=12, block=4)
        exact = results(model.denoiser(), model, prompts, blocks)
        found = cached_by(model, "dual:1")
        assert results(found, model, prompts, blocks, rows=2, ended=found.forget) == exact
        whole = model.plan("void", canvas=12, block=12)  # prompt and block are the row
        found = cached_by(model, "prompt", 12)
        exact = results(model.denoiser(), model, prompts, whole)
        assert results(found, model, prompts, whole, rows=2, ended=found.forget) == exact


FIVE, THREE = [12, 13, 14, 11, 15], [12, 13, 14]
SIXES = ("original", {"canvas": 12, "block": 6, "schedule": "even"})
FOURS = ("original", {"canvas": 12, "block": 4, "schedule": "even"})
PROBED = (
    "void-expansion",
    {"canvas": 8, "limit": 8, "block": 4, "window": 3, "ban": "void,eos"},
)  # one probe


@pytest.mark.parametrize(
    ("family", "cache", "prompt", "chosen", "widths"),
    [  # one slot a pass: the first pass of a block takes all tokens, the others what the policy says
        ("llada", "prompt", FIVE, SIXES, [17, 11, 11, 11, 11, 11, 17, 11, 11, 11, 11, 11]),
        ("llada", "prompt:2", FIVE, SIXES, [17, 6, 11, 6, 11, 6, 17, 6, 11, 6, 11, 6]),
        # Dream's logits of a slot come from the position before it; beside the prompt, the prompt has it.
        ("dream", "prompt", FIVE, SIXES, [17, 11, 11, 11, 11, 11, 17, 12, 12, 12, 12, 12]),
        ("dream", "prompt:2", FIVE, SIXES, [17, 7, 11, 7, 11, 7, 17, 7, 12, 7, 12, 7]),
        # What is ahead keeps the keys of the first pass: entering the second block computes 11 tokens of 15.
        ("llada", "ahead:3", THREE, FOURS, [15, 4, 4, 7, 11, 4, 7, 4, 15, 7, 4, 4]),
        # The last probe computed the row whole on the canvas that is kept: it is the first block's refresh.
        ("llada", "dual", THREE, PROBED, [11, 4, 4, 4, 11, 4, 4, 4]),
    ],
)
def test_a_pass_computes_what_the_policy_says(family, cache, prompt, chosen, widths):
    model, (name, fields) = tiny(family, 3), chosen
    with shapes(model) as seen:
        made = plan(name, defaults=FAMILIES[family].decoding, **fields)
        results(cached_by(model, cache, made.block), model, [prompt], made)
    assert [shape[1] for shape in seen] == widths


@BOTH
@CACHES
def test_a_pass_on_an_unchanged_canvas_or_outside_the_block_is_the_full_pass(family, cache):
    assert CachePolicy.parse(cache).approximation == f"{cache} cache"
    for seed in range(2):
        rng, model = random.Random(seed), tiny(family, seed)
        prompts = ragged(rng, 4)
        canvas, other = (half_filled(model, prompts, 12, rng) for _ in range(2))
        first = canvas.prompt + 4 * torch.tensor([0, 1, 2, 1])
        where = canvas.masked & (canvas.offset >= first[:, None]) & (canvas.offset < first[:, None] + 4)
        plain, found = model.denoiser(), cached_by(model, cache)
        wanted = plain(canvas, where)
        for number in range(7):
            later = replace(canvas, decoded=canvas.decoded + number)
            torch.testing.assert_close(found(later, where), wanted, atol=1e-12, rtol=0)
        # A caller who observes gets no stale numbers, whatever has been written since.
        later = replace(other, decoded=other.decoded + 7)
        torch.testing.assert_close(found(later, other.masked), plain(other, other.masked), atol=1e-12, rtol=0)


@BOTH
@CACHES
def test_with_one_layer_every_cache_is_exact(family, cache):
    """The keys of a first layer depend on their own token alone, so nothing kept is ever stale."""
    model, prompts = tiny(family, 1, layers=1), ragged(random.Random(1), 3)
    grown = {"limit": 16, "window": 3, "tau_nonvoid": 0.3, "tau_gap": -0.3}
    for chosen in (
        model.plan("void", canvas=12, block=4),
        model.plan("void-expansion", canvas=4, block=4, **grown),
        model.plan("append-blocks", block=4, limit=12),
        model.plan("void", canvas=12, block=12, trim=True),
    ):
        found = cached_by(model, cache, chosen.block)
        exact = results(model.denoiser(), model, prompts, chosen)
        assert results(found, model, prompts, chosen, ended=found.forget) == exact


def test_a_pass_that_is_tried_again_computes_the_same():
    """A failed pass is none of the passes after which something is refreshed."""
    model, prompt = tiny("llada", 3), [12, 13, 14]
    canvas = half_filled(model, [prompt], 12, random.Random(0))
    canvas = replace(canvas, decoded=canvas.decoded + 1)  # not its first pass
    where = canvas.masked & (canvas.offset < canvas.prompt[:, None] + 4)
    found, fails = cached_by(model, "prompt:2"), False

    def fail(*_):
        if fails:
            raise MemoryError

    hook = model.net.model.layers[1].mlp.register_forward_pre_hook(fail)
    with shapes(model) as seen:
        for fails in (False, True, False, True, False, False):
            try:
                found(canvas, where)
            except MemoryError:
                assert fails
    hook.remove()
    assert [shape[1] for shape in seen] == [15, 4, 4, 7, 7, 4]


# --------------------------------------------------------------------------------------------- the store
def test_a_cache_takes_little_more_than_its_rows_and_gives_it_back():
    """Ragged rows come and go while the store grows and closes its holes: 15 % is spared, and no row notices."""
    model, rng = tiny("llada", 2), random.Random(2)
    prompts, chosen = ragged(rng, 48, longest=200), plan("original", canvas=32, block=8, threshold=0.01)
    found = cached_by(model, "prompt:4", 8, bucket=64)
    engine, largest, ended = Engine(found, model.roles, rows=16, tokens=10**6, ended=found.forget), 0, {}
    for key, prompt in enumerate(prompts):
        engine.submit(prompt, chosen, key=key)
    while engine.busy:
        ended |= {e.outcome.key: e.outcome for e in engine.step() if isinstance(e, Finished)}
        largest = max(largest, engine.tokens_read)
    assert largest > 1500
    assert (found.entries, found.store.places) == ({}, {})
    assert {len(part) for part in found.store.keys} == {found.store.capacity + 64}
    assert found.store.capacity <= 1.15 * largest
    alone = results(cached_by(model, "prompt:4", 8), model, prompts, chosen, rows=1)
    assert [replace(ended[key], seconds=0.0) for key in range(48)] == alone
    # Rows that are cancelled leave their places, too: nothing grows any more.
    before = [part.data_ptr() for part in found.store.keys]
    for prompt in prompts:
        engine.submit(prompt, chosen)
    while engine.busy:
        engine.step()
        for handle in engine.handles[:2]:
            engine.cancel(handle)
        assert max(len(found.entries), len(found.store.places)) <= 16
    assert [part.data_ptr() for part in found.store.keys] == before
    assert (found.entries, found.store.places) == ({}, {})


def test_a_key_that_comes_back_with_another_prompt_is_computed_anew():
    model = tiny("llada", 1)
    chosen, found = model.plan("void", canvas=4, block=4), cached_by(model, "dual")
    for prompt in ([12, 13, 14], [15, 11, 12], [12, 13, 14]):  # nobody tells the cache that rows end
        fresh = results(cached_by(model, "dual"), model, [prompt], chosen)
        assert results(found, model, [prompt], chosen) == fresh


class Spoiled:
    """A cached denoiser that sees NaN, while a pass runs, wherever the store holds something of other rows."""

    def __init__(self, inner: CachedDenoiser) -> None:
        self.inner, self.handles = inner, []

    def __call__(self, canvas, where):
        self.handles = canvas.handle.tolist()
        return self.inner(canvas, where)

    def forward(self, forward, inner, store, *tensors):
        others = torch.ones(store.capacity + store.filler, dtype=torch.bool)
        for handle in self.handles:
            others[store.places[handle]] = False
        kept = [(part, part[others]) for part in store.keys + store.values]
        for part, _ in kept:
            part[others] = torch.nan
        result = forward(inner, store, *tensors)
        for part, before in kept:
            part[others] = before
        return result


@BOTH
@CACHES
def test_rows_decode_as_they_do_alone_and_read_no_other_keys(family, cache, monkeypatch):
    """Ragged rows join, rest and leave, and one is cancelled."""
    rng, model = random.Random(4), tiny(family, 4)
    prompts, chosen = ragged(rng, 6), model.plan("void", canvas=12, block=4)
    alone = [results(cached_by(model, cache), model, [prompt], chosen)[0] for prompt in prompts]
    forward = packed.forward
    for rows, tokens, bucket in ((2, 10**6, 1), (6, 60, 8)):
        found = cached_by(model, cache, bucket=bucket)
        spoiled = Spoiled(found)
        monkeypatch.setattr(packed, "forward", partial(spoiled.forward, forward))
        engine = Engine(spoiled, model.roles, rows=rows, tokens=tokens, ended=found.forget)
        handles = [engine.submit(prompt, chosen, key=key) for key, prompt in enumerate(prompts)]
        ended = {}
        while engine.busy:
            ended |= {e.outcome.key: e.outcome for e in engine.step() if isinstance(e, Finished)}
            engine.cancel(handles[1])
        for key in (0, 2, 3, 4, 5):
            assert replace(ended[key], seconds=0.0) == replace(alone[key], key=key), (rows, key)


def test_a_store_that_cannot_grow_is_emptied(monkeypatch):
    model, prompts = tiny("llada", 2), [[12] * 3, [13] * 140]
    chosen = plan("original", canvas=8, block=8)
    wanted = [replace(results(cached_by(model, "dual", 8), model, [prompt], chosen)[0], key=key)
              for key, prompt in enumerate(prompts)]  # fmt: skip
    found = cached_by(model, "dual", 8)
    engine = Engine(found, model.roles, rows=2, ended=found.forget)
    engine.submit(prompts[0], chosen, key=0)
    engine.step()
    engine.submit(prompts[1], chosen, key=1)
    zeros, calls, cleared = torch.Tensor.new_zeros, iter(range(10**6)), []

    def short_of_memory(self, *size):
        if next(calls) == 2:
            raise MemoryError
        return zeros(self, *size)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", short_of_memory)
        patch.setattr(found, "clear", lambda: cleared.append(CachedDenoiser.clear(found)))
        assert not [event for event in engine.step() if hasattr(event, "error")]  # the rows were run apart
    assert cleared == [None]
    list(engine.outcomes())
    assert (found.entries, found.store.places) == ({}, {})
    for key, prompt in enumerate(prompts):
        engine.submit(prompt, chosen, key=key)
    ended = {outcome.key: replace(outcome, seconds=0.0) for _, outcome in engine.outcomes()}
    assert [ended[key] for key in (0, 1)] == wanted
