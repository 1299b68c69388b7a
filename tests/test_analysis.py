"""Priors and overflow: the numbers of specification 8, and what always holds."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.theory.oracle import ROLES, WORD, LengthOracle
from studies.theory.theorems import LengthModel
from toys import LOW, MaskLover, Toy, World
from voidpad.decode.presets import plan
from voidpad.decode.rows import Rows
from voidpad.diagnose import overflow
from voidpad.diagnose.eos_prior import (
    PaddedAnswers,
    batched,
    measure,
    read_canvas,
    same_canvas,
    shares,
    shuffled,
    void_tail,
)
from voidpad.diagnose.overflow import Answer, Rate, advice, overflown, rates, trajectory, verdict
from voidpad.diagnose.trace import Recorder, Trace
from voidpad.engine.batching import Engine
from voidpad.models import random_model
from voidpad.roles import Roles
from voidpad.training.padding import POLICIES, pad
from voidpad.training.prepared import Example, Pairs

LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=30)
SPEC = LengthModel.weighted({1: ".35", 2: ".25", 5: ".40"})  # 8.6
BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


def pairs_of(*sizes: tuple[int, int], complete: bool = True) -> Pairs:
    """Examples with these prompt and response lengths."""
    return Pairs.of([Example([5] * prompt, [8] * response, complete) for prompt, response in sizes])


# 8.2: the prior


def example() -> PaddedAnswers:
    pairs = pairs_of((2, 1), (1, 4), (3, 2), (1, 1))
    return batched(pairs, [torch.tensor([0, 1]), torch.tensor([2, 3])])


def test_prior_example():
    data = example()
    assert data.room.tolist() == [4, 5, 3, 5]
    cdf, target, count = shares(data)
    assert cdf.tolist() == [0, 0.5, 0.75, 0.75, 1]
    assert target.tolist() == pytest.approx([0, 2 / 4, 3 / 4, 2 / 3, 1])
    assert count.tolist() == [4, 4, 4, 3, 2]


@given(LENGTHS, st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_prior_is_what_the_padded_rows_hold(lengths, size, seed):
    """p_i counted on the rows that training would see, for EOS and for VOID."""
    pairs = pairs_of(*((1 + n % 4, length) for n, length in enumerate(lengths)))
    batches = shuffled(len(pairs), size, seed=seed)
    data = batched(pairs, batches)
    for late, (policy, token) in enumerate((("eos", LOW.eos), ("void", LOW.void))):
        slots = [[] for _ in range(int(data.room.max()))]
        for rows in batches:
            examples = [Example([5] * int(pairs.prompt[r]), [8] * lengths[r]) for r in rows.tolist()]
            batch = pad(examples, policy, LOW)
            for ids, prompt in zip(batch.ids.tolist(), pairs.prompt[rows].tolist(), strict=True):
                for slot, found in enumerate(ids[prompt:]):
                    slots[slot].append(found == token)
        _, target, count = shares(data, late=late)
        assert count.tolist() == [len(found) for found in slots]
        assert target.tolist() == pytest.approx([sum(found) / len(found) for found in slots])


@given(LENGTHS, st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_equal_padding_makes_the_prior_the_distribution(lengths, canvas):
    cdf, target, _ = shares(same_canvas(pairs_of(*((2, n) for n in lengths)), canvas))
    known = LengthModel.of(lengths)
    assert target.tolist() == cdf.tolist()
    assert cdf.tolist() == pytest.approx([float(known.share(i)) for i in range(canvas)])


def test_a_cut_answer_ends_nowhere():
    pairs = Pairs.of([Example([5], [8, 8], complete=False), Example([5], [8, 8, 8])])
    data = batched(pairs, [torch.tensor([0, 1])])
    cdf, target, count = shares(data)
    assert data.room.tolist() == [2, 4]
    assert (cdf.tolist(), target.tolist(), count.tolist()) == ([0, 0, 0, 0.5], [0, 0, 0, 1], [2, 2, 1, 1])


def test_a_perfect_model_has_no_gap():
    """On one canvas the oracle's q_i is F(i - 1), so all three curves are one."""
    lengths = LengthModel.of([1, 2, 2, 5])
    data = same_canvas(pairs_of(*((1, n) for n in (1, 2, 2, 5))), 7)
    (eos, void) = measure(LengthOracle(lengths, POLICIES["eos"], 7), ROLES, data, tokens=20)
    assert max(eos.gap("model", "target", least=1) + eos.gap("model", "cdf", least=1)) < 1e-12
    assert void.model.max() < 1e-20  # it was never taught VOID
    (_, void) = measure(LengthOracle(lengths, POLICIES["void"], 7), ROLES, data)
    assert max(void.gap("model", "target", least=1)) < 1e-12
    assert np.isnan(eos.gap("model", "target", least=5)[0])  # no slot has five examples


@BOTH
def test_probabilities_are_the_aligned_softmax(family):
    """Against a plain forward pass, one row at a time, on batch-padded data of both families."""
    model = random_model(family, kv_heads=2)
    data = example()
    curves = measure(model.denoiser(), model.roles, data, tokens=12)
    total = torch.zeros(2, 5, dtype=torch.double)
    for row in range(4):
        prompt = [5] * int(data.pairs.prompt[row])
        ids = torch.tensor([prompt + [model.roles.mask] * int(data.room[row])])
        with torch.inference_mode():
            raw = model.net(ids).logits[0].softmax(-1)
        first = len(prompt) - model.family.shift
        some = raw[first : first + int(data.room[row])]
        for place, token in enumerate((model.roles.eos, model.roles.void)):
            total[place, : len(some)] += some[:, token]
    for place, one in enumerate(curves):
        assert one.model.tolist() == pytest.approx((total[place] / one.count).tolist(), rel=1e-4)


# 8.3: overflow


def test_overflow_flag():
    roles = Roles(mask=0, eos=1, void=2)
    full = [9] * 5 + [1] * 95
    assert overflown(full, roles)
    assert not overflown([9] * 6 + [1] * 94, roles)  # longer than 5 %
    assert overflown([9] * 5 + [1] * 86 + [7] * 9, roles)
    assert not overflown([9] * 5 + [1] * 85 + [7] * 10, roles)  # the rest is not EOS
    assert not overflown([9] * 100, roles)
    # An early stop leaves the tail unwritten: a terse answer and its EOS, nothing at all, a block full of EOS.
    assert not overflown([9] * 2 + [1] + [0] * 97, roles)
    assert overflown([1] + [0] * 99, roles)
    assert overflown([9] * 2 + [1] * 14 + [0] * 84, roles)
    assert not overflown([9] * 2 + [1] * 14 + [0] * 84, roles, short=0.01)


def recorded(family: str, **fields) -> tuple[Trace, object]:
    model = random_model(family)
    prompt = model.encode("a b c", raw=True)
    return overflow.record(model, prompt, model.plan("original", **fields), name="original"), model


@BOTH
@pytest.mark.parametrize("block", [4, 16])
def test_trajectories_retell_the_decode(family, block):
    trace, model = recorded(family, canvas=16, block=block)
    one = trajectory(trace)
    assert one.probability("p_eos").shape == one.probability("p_void").shape == (len(trace.passes), 16)
    assert sum(m.left + m.right for m in one.moments) == 16
    assert sorted(one.order.tolist()) == sorted(step.n for step in trace.passes for _ in step.commits)
    for step, moment in zip(trace.passes, one.moments, strict=True):
        assert (step.first_eos, step.n) == (moment.first_eos, moment.number)
    ids = list(trace.result.ids)
    assert one.effective == (ids.index(model.roles.eos) if model.roles.eos in ids else 16)
    busy = [step for step in trace.passes if step.commits]
    assert one.stage1 + one.stage2 == len(busy)


def oracle_trace(padding: str, **fields) -> Trace:
    """The oracle's decode as a trace: a real record of a decode whose every commit is known."""
    model = random_model("llada")
    chosen = plan("original", canvas=6, **fields)
    recorder = Recorder(model, plan_name="original")
    engine = Engine(LengthOracle(SPEC, POLICIES[padding], 6), ROLES)
    engine.submit([WORD], chosen, observe=recorder.observe)
    for event in engine.events():
        recorder(event)
    return recorder.traces[0]


def test_stages_of_the_oracle():
    """8.6, first line: EOS at 6, 3, 4, 5, 2, then the word at 1."""
    one = trajectory(oracle_trace("eos", block=6), short=0.2)
    assert [m.first_eos for m in one.moments] == [5, 2, 2, 2, 1, 1]
    assert [(m.left, m.right) for m in one.moments] == [(0, 1)] * 5 + [(1, 0)]
    assert [round(m.eos_share, 3) for m in one.moments] == [1, 1, 1, 1, 1, 0.833]
    assert (one.stage1, one.stage2, one.stage2_start, one.effective, one.overflow) == (5, 1, 5, 1, True)
    assert one.order.tolist() == [5, 4, 1, 2, 3, 0]
    assert one.probability("p_eos")[0].tolist() == pytest.approx([0, 0.35, 0.6, 0.6, 0.6, 1], abs=1e-3)
    small = trajectory(oracle_trace("rainbow", block=1))
    assert (small.stage1, small.stage2, small.overflow) == (0, 6, False)


def test_trajectories_follow_edits():
    """Rules that change the canvas: commit times move with their slots."""
    model = random_model("llada")
    chosen = model.plan("rho-eos", canvas=16, limit=64, block=8)
    trace = overflow.record(model, model.encode("a b", raw=True), chosen, name="rho-eos")
    one = trajectory(trace)
    assert len(one.order) == len(trace.result.ids)
    canvases = list(trace.canvases())
    assert any(step.edits for step in trace.passes)
    for slot, number in enumerate(one.order.tolist()):
        if number >= 0:
            token = trace.result.ids[slot]
            assert token in [found for _, found, _ in trace.passes[number].commits]
    assert canvases[-1].tolist() == list(trace.result.ids)


def test_rates_and_verdict():
    def answer(block: int, row: int, drowned: bool) -> Answer:
        length = 3 if drowned else 100
        whole = {"key": row, "ids": [1] * 512, "tokens": [1] * 512, "text": "", "stop_reason": "full"}
        judged = {"effective": length, "overflow": drowned, "short": drowned}
        return Answer(**whole, passes_decode=512, block=block, row=row, **judged)

    answers = [answer(512, n, n < 23) for n in range(50)] + [answer(64, n, n < 1) for n in range(50)]
    answers += [answer(32, n, False) for n in range(50)]
    found = rates(answers)
    assert [(r.block, r.overflows) for r in found] == [(32, 0), (64, 1), (512, 23)]
    assert found[2].effective == pytest.approx((23 * 3 + 27 * 100) / 50)
    for part in ("23 of 50 answers overflow at block 512", "32, 64", "no usable VOID signal"):
        assert part in verdict(found, 0.0)
    assert "no VOID token" in verdict(found[2:], None)
    assert "a usable VOID signal" in verdict(found, 0.9)


def test_advice_names_what_works_now_before_training():
    few, some, many = (
        Rate(block, 50, overflows, overflows, 9.0, 9.0) for block, overflows in ((32, 0), (64, 1), (512, 23))
    )
    now, blocks, good = advice(
        [few, some, many], 0.0, model="my model", adapter="a", plan="original", canvas=96
    )
    assert now.endswith("voidpad generate --model 'my model' --adapter a --plan eos-last --canvas 96")
    original = "voidpad generate --model 'my model' --adapter a --plan original --canvas 96 --block 64"
    assert blocks.endswith(original)
    assert "fine-tune with VOID padding" in good
    now, blocks = advice([few, many], 0.9, model="m", plan="original")
    assert now.endswith("voidpad generate --model m --plan void")
    assert blocks.endswith("voidpad generate --model m --plan original --block 32")
    now, blocks = advice([few, many], 0.9, model="m", plan="void")
    assert "voidpad generate" not in now  # that is what was just done
    now, good = advice([many], None, model="m", plan="eos-last")
    assert now.endswith("voidpad analyze overflow --model m --plan eos-last --blocks 256")
    assert advice([few, some], 0.0, model="m", plan="original") == []


def test_void_tail_of_worlds():
    """A world padded with VOID shows it at the tail of a long canvas; one padded with EOS does not."""
    prompts = [[13], [5, 13]]
    for padding, low, high in (("void", 0.8, 1), ("eos", 0, 0.1)):
        toy = Toy(World(LOW, 0, padding))
        assert low <= void_tail(toy, LOW, prompts, canvas=40, window=8) <= high
    assert void_tail(toy, Roles(mask=0, eos=1), prompts, canvas=8) is None


def test_short_rows_end_in_zeros_and_mask_is_never_the_likeliest():
    model = random_model("dream")
    canvas = Rows.blank([[5, 6], [7]], 4, model.roles)
    canvas = canvas.resize(canvas.prompt + torch.tensor([2, 4]))
    seen = read_canvas(model.denoiser(), canvas)
    assert seen.eos.shape == (2, 4)
    assert seen.eos[0, 2:].tolist() == [0, 0]
    world, canvas = World(LOW, 0), Rows.blank([[5, 13]], 12, LOW)
    keen = read_canvas(Toy(MaskLover(world, LOW, 0, share=1.0)), canvas)
    assert keen.best.tolist() == read_canvas(Toy(world), canvas).best.tolist()
    assert keen.eos.max() < 0.1  # but it keeps its mass


def test_survey_agrees_with_generate():
    model = random_model("llada")
    prompts = [model.encode(text, raw=True) for text in ("a b c", "d")]
    plans = [model.plan("original", canvas=16, block=block) for block in (8, 16)]
    answers = overflow.survey(model, prompts, plans)
    assert [(a.block, a.row) for a in answers] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    for answer in answers:
        chosen = model.plan("original", canvas=16, block=answer.block)
        (result,) = model.generate("a b c" if answer.row == 0 else "d", chosen, raw=True)
        assert (answer.text, answer.passes_decode) == (result.text, result.passes_decode)
    assert json.dumps([a.__dict__ for a in answers])
