"""Calibration: a replayed setting does what a decode with it would do, and the choice is the best of them."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from voidpad.engine.batching import Engine
from voidpad.errors import ConfigError, RoleError
from voidpad.experiments.calibrate import Search, Setting, Survey, choose, fields, frontier, settings, survey
from voidpad.models import Model, random_model
from voidpad.roles import Roles

SEARCH = Search(start=4, limit=24, block=4, windows=(2, 5, 8), levels=6)


@pytest.fixture(scope="module", params=[("llada", 9), ("dream", 8)], ids=["llada", "dream"])
def model(request) -> Model:
    """Random weights, sure of VOID and EOS at some places, whose answers have 1 to 24 tokens."""
    family, seed = request.param
    made = random_model(family, vocab=16, hidden=16, intermediate=32, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        made.net.lm_head.weight[[made.roles.eos, made.roles.void]] *= 2
    return made


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(11, 16) for _ in range(rng.randint(1, 12))] for _ in range(14)]


@pytest.fixture(scope="module")
def seen(model, prompts) -> Survey:
    return survey(model, prompts, SEARCH, rows=5)


def decoded(model: Model, prompts, setting: Setting) -> list:
    chosen = model.plan("void-expansion", **fields(setting, SEARCH))
    done = Engine(model.denoiser(), model.roles).run(prompts, chosen)
    return sorted(done, key=lambda row: row.key)


def test_replaying_a_setting_chooses_the_canvas_a_decode_chooses(model, prompts, seen):
    found = settings(seen, SEARCH)
    several = [s for s in found if SEARCH.start < s.canvas < SEARCH.limit]
    assert len({(s.window, round(s.canvas, 3)) for s in several}) > 6
    answers = full(model, prompts)
    for setting in random.Random(0).sample(several, 10):
        rows = decoded(model, prompts, setting)
        assert sum(row.canvas for row in rows) / len(rows) == pytest.approx(setting.canvas), setting
        fits = [len(answer) <= row.canvas for answer, row in zip(answers, rows, strict=True)]
        assert sum(fits) / len(fits) == pytest.approx(setting.fit), setting


def full(model: Model, prompts) -> list[list[int]]:
    chosen = model.plan("void", canvas=SEARCH.limit, block=SEARCH.block)
    done = sorted(Engine(model.denoiser(), model.roles).run(prompts, chosen), key=lambda row: row.key)
    return [row.tokens for row in done]


def test_a_survey_does_not_depend_on_the_batch(model, prompts, seen):
    other = survey(model, prompts, SEARCH, rows=64)
    for name in ("lengths", "prompt", "answer", "passes", "void", "other"):
        torch.testing.assert_close(getattr(other, name), getattr(seen, name))


def test_costs_are_those_of_decoding(model, prompts, seen):
    """Where every answer fits, the replayed token-passes are the ones a decode pays, probes included."""
    never = next(s for s in settings(seen, SEARCH) if s.tau_nonvoid == 0.0)
    assert (never.fit, never.canvas) == (1.0, SEARCH.limit)
    rows = decoded(model, prompts, never)
    base = [row.passes_decode * (len(p) + SEARCH.limit) for row, p in zip(rows, prompts, strict=True)]
    probes = [sum(len(p) + length for length in range(4, 24, 4)) for p in prompts]  # the last one is shared
    assert never.cost == pytest.approx((sum(base) + sum(probes)) / sum(base))


def test_the_choice_is_the_cheapest_that_keeps_enough_answers(seen):
    found = settings(seen, SEARCH)
    for fit in (0.1, 0.5, 0.8, 1.0):
        best = choose(found, fit)
        assert best.fit >= fit
        assert all(s.cost >= best.cost for s in found if s.fit >= fit)
    assert choose(found, 0.1).cost < choose(found, 1.0).cost


def test_without_enough_the_choice_keeps_most():
    poor = [Setting(8, 0.1, 0.0, fit, cost, 32.0) for fit, cost in ((0.3, 0.2), (0.6, 0.5), (0.6, 0.4))]
    assert choose(poor, 0.9) == poor[2]


def test_the_frontier_rises_and_nothing_beats_it(seen):
    found = settings(seen, SEARCH)
    best = frontier(found)
    assert len(best) > 2
    for cheap, dear in pairwise(best):
        assert cheap.cost < dear.cost
        assert cheap.fit < dear.fit
    for setting in found:
        assert any(b.cost <= setting.cost and b.fit >= setting.fit for b in best)
    assert choose(found, 1.0) in best


def test_a_chosen_setting_becomes_the_checkpoints_default(model, seen):
    chosen = choose(settings(seen, SEARCH), 0.5)
    card = replace(model.card, calibration={"void-expansion": fields(chosen, SEARCH)})
    kept = replace(model, card=card).plan("void-expansion")
    values = {
        name: getattr(kept.length, name) for name in ("canvas", "limit", "window", "tau_nonvoid", "tau_gap")
    }
    assert {**values, "block": kept.block} == fields(chosen, SEARCH)
    assert replace(model, card=card).plan("void-expansion", window=3).length.window == 3  # the caller wins
    assert replace(model, card=card).plan("void").length == model.plan("void").length


def test_models_and_prompts_that_cannot_be_calibrated_are_refused(model):
    with pytest.raises(ConfigError, match="no prompts"):
        survey(model, [], SEARCH)
    with pytest.raises(ConfigError, match="context of 512"):
        survey(model, [[12] * 500], SEARCH)
    with pytest.raises(RoleError, match="VOID"):
        survey(replace(model, card=replace(model.card, roles=Roles(mask=0, eos=1))), [[12]], SEARCH)
