"""Traces: what was recorded is what happened, what is written is read back, and damage is named."""

import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stories import eos_first, expansion
from voidpad.diagnose.trace import Recorder, Trace, read, records, write
from voidpad.engine.events import Wrote
from voidpad.errors import DataError
from voidpad.models import Model, random_model

PLANS = {
    "original": {"canvas": 16, "block": 8},
    "void": {"canvas": 24, "block": 8, "threshold": 0.04},
    "void-expansion": {"canvas": 8, "limit": 32, "block": 8, "tau_nonvoid": 0.045, "tau_gap": -1.0},
    "daedal": {"canvas": 8, "limit": 40, "block": 8, "low": 0.9, "grow": 3, "enough": 0.0, "check": 4},
    "rho-eos": {"canvas": 24, "limit": 32, "block": 8, "rho_low": 0.0, "rho_high": 0.0, "unit": 4},
    "smart-crop": {"canvas": 32, "block": 8, "tau": 0.3},
}


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(vocab=64, seed=3)


def lines(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def same(a: Trace, b: Trace) -> bool:
    return list(records(a)) == list(records(b))


@pytest.mark.parametrize("detail", ["commits", "probs", "top5"])
def test_what_is_written_is_read_back(tmp_path, detail):
    told = [dataclasses.replace(eos_first(12, detail), row=0), dataclasses.replace(expansion(detail), row=1)]
    write(tmp_path / "t.jsonl", told)
    again = read(tmp_path / "t.jsonl")
    assert all(same(a, b) for a, b in zip(told, again, strict=True))
    assert list(list(again[1].canvases())[-1]) == list(again[1].result.ids)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_the_format_is_the_documented_one(tmp_path):
    trace = expansion("top5")
    write(tmp_path / "t.jsonl", [trace])
    header, first, *_, end = lines(tmp_path / "t.jsonl")
    assert (header["type"], header["version"], header["row"], header["detail"]) == ("header", 2, 0, "top5")
    roles = trace.header.roles
    wanted = {"mask": roles.mask, "eos": roles.eos, "ends": [roles.eos], "void": roles.void}
    assert header["roles"] == {**wanted, "rainbow": list(roles.rainbow)}
    assert (first["type"], first["n"], first["phase"], first["length"]) == ("pass", 0, "probe", 32)
    assert first["edits"] == [{"kind": "append", "at": 32, "count": 16, "id": trace.header.roles.mask}]
    assert (first["masks"], first["first_eos"], first["commits"]) == (48, None, [])
    assert set(first["signal"]) == {"s_nonvoid", "s_gap"}
    assert (len(first["p_eos"]), len(first["top5_ids"])) == (4 * -(-32 * 2 // 3), 4 * -(-32 * 5 * 4 // 3))
    assert end["result"]["stop_reason"] == "eos"
    assert end["pieces"][str(trace.header.roles.eos)] == "<|eos|>"


def test_a_number_json_cannot_hold_is_recorded_as_none(tmp_path):
    trace = eos_first(4, "commits")
    (slot, token, _), *_ = trace.passes[0].commits
    odd = dataclasses.replace(trace.passes[0], commits=((slot, token, -np.inf),), signal={"rho": np.nan})
    write(tmp_path / "t.jsonl", [dataclasses.replace(trace, passes=(odd, *trace.passes[1:]))])
    assert read(tmp_path / "t.jsonl")[0].passes[0].commits == ((slot, token, None),)


def change(number: int, **fields):
    def damage(records):
        records[number] = {**records[number], **fields}

    return damage


def drop(number: int):
    return lambda records: records.pop(number)


DAMAGE = {
    "version 9": (change(0, version=9), "line 1: .*version 9"),
    "a detail nobody knows": (change(0, detail="all"), "line 1: .*detail"),
    "no header": (drop(0), "line 1"),
    "no end": (drop(-1), "row 0 has no end line"),
    "bytes that are not base64": (change(1, p_eos="%%%%"), "line 2: .*p_eos"),
    "a missing field": (lambda records: records[1].pop("masks"), "line 2: .*masks"),
    "nothing": (lambda records: records.clear(), "empty"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_a_data_error_that_says_where(tmp_path, damage, message):
    parts = list(records(eos_first(8, "probs")))
    damage(parts)
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(part) + "\n" for part in parts))
    with pytest.raises(DataError, match=message):
        read(path)
    with pytest.raises(DataError, match="absent"):
        read(tmp_path / "absent.jsonl")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_damage_raises_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    write(path, [eos_first(5, "probs")])
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(32, 126))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    with contextlib.suppress(DataError):
        read(path)


def recorded(model: Model, name: str, *, prompts=("hello", "what is 2+2?"), detail="probs", cache=None):
    """The recorder after a decode, and what an onlooker saw of every pass."""
    plan = model.plan(name, **PLANS[name])
    recorder = Recorder(model, plan_name=name, seed=5, detail=detail, cache=cache)
    seen: dict[int, list] = {}

    def listen(event):
        recorder(event)
        if isinstance(event, Wrote):
            before, after = event.step.before, event.step.after
            for row, key in enumerate(before.key.tolist()):
                seen.setdefault(key, []).append((before.answer(row), after.answer(row)))

    model.generate(prompts, plan, seed=5, cache=cache, observe=recorder.observe, listen=listen)
    return recorder, seen


@pytest.mark.parametrize("name", PLANS)
def test_a_recorded_decode_replays_pass_for_pass(model, name, tmp_path):
    recorder, seen = recorded(model, name)
    recorder.write(tmp_path / "t.jsonl")
    traces = read(tmp_path / "t.jsonl")
    assert [trace.row for trace in traces] == [0, 1]
    for trace in traces:
        assert [canvas.tolist() for canvas in trace.canvases()] == [after for _, after in seen[trace.row]]
        assert [step.length for step in trace.passes] == [len(before) for before, _ in seen[trace.row]]
        phases = [step.phase for step in trace.passes]
        result = trace.result
        assert phases.count("shared") == result.passes_shared
        assert phases.count("probe") + phases.count("shared") == result.passes_probe
        assert phases.count("decode") + phases.count("shared") == result.passes_decode
        assert list(trace.result.ids) == seen[trace.row][-1][1]
        assert result.seconds > 0


def test_the_plans_cover_every_kind_of_edit_and_phase(model):
    """Otherwise the test above shows less than it says."""
    passes = [step for name in PLANS for trace in recorded(model, name)[0].traces for step in trace.passes]
    assert {edit.kind for step in passes for edit in step.edits} == {"append", "insert", "cut"}
    assert {step.phase for step in passes} == {"probe", "shared", "decode"}


@pytest.mark.parametrize("name", ["void", "void-expansion", "daedal"])
def test_recorded_probabilities_are_the_models(model, name):
    recorder, seen = recorded(model, name, prompts=("hello",), detail="top5")
    trace = recorder.traces[0]
    prompt, roles = list(trace.header.prompt.ids), model.roles
    assert {*prompt, *trace.result.ids} <= trace.pieces.keys()
    for step, (before, _) in zip(trace.passes, seen[0], strict=True):
        with torch.no_grad():
            logits = model.net(torch.tensor([prompt + before])).logits[0, len(prompt) :]
        p = logits.softmax(-1).numpy()
        np.testing.assert_allclose(step.p_eos, p[:, roles.eos], atol=1e-3)
        np.testing.assert_allclose(step.p_void, p[:, roles.void], atol=1e-3)
        np.testing.assert_allclose(step.top, p.max(1), atol=1e-3)
        assert {token for _, token, _ in step.commits} | set(step.top5_ids.tolist()) <= trace.pieces.keys()
        five = step.top5_ids.reshape(-1, 5)
        np.testing.assert_allclose(step.top5_p.reshape(-1, 5), np.take_along_axis(p, five, 1), atol=1e-3)
        np.testing.assert_allclose(step.top5_p.reshape(-1, 5), -np.sort(-p, axis=1)[:, :5], atol=1e-3)


def test_the_least_detail_asks_for_no_extra_logits(model):
    recorder, _ = recorded(model, "original", detail="commits")
    canvas = next(model.stream("hi", "original", **PLANS["original"])).before
    assert not recorder.observe(canvas).any()
    assert all(step.p_eos is None and step.top5_ids is None for step in recorder.traces[0].passes)


def untimed(result):
    return dataclasses.replace(result, seconds=0.0)


@pytest.fixture(scope="module")
def exact() -> Model:
    return random_model(vocab=64, seed=3, layers=1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("cache", "detail"),
    [(None, "commits"), (None, "top5"), ("prefix", "probs"), ("dual:2", "top5"), ("prompt:2", "top5")],
)
@pytest.mark.parametrize("name", ["void", "void-expansion", "daedal"])
def test_observing_never_changes_an_answer(exact, name, detail, cache):
    model = exact
    plan, prompts = model.plan(name, **PLANS[name]), ["hello", "what is 2+2?", "x"]
    recorder = Recorder(model, plan_name=name, seed=5, detail=detail, cache=cache)
    shared = {"seed": 5, "cache": cache, "rows": 2}
    plain = model.generate(prompts, plan, **shared)
    watched = model.generate(prompts, plan, observe=recorder.observe, listen=recorder, **shared)
    assert [untimed(row) for row in watched] == [untimed(row) for row in plain]
    told = sorted(recorder.traces, key=lambda trace: trace.row)
    assert [untimed(trace.result) for trace in told] == [untimed(row) for row in plain]


def test_under_a_cache_a_trace_holds_what_the_pass_needed_and_says_so(model, tmp_path):
    recorder, _ = recorded(model, "original", detail="top5", cache="dual")
    recorder.write(tmp_path / "t.jsonl")
    for trace in read(tmp_path / "t.jsonl"):
        assert trace.header.recorded == "block"
        assert trace.result.approximations == ("dual cache",)
        canvases = [np.full(16, model.roles.mask), *trace.canvases()]
        for step, before in zip(trace.passes, canvases, strict=False):
            slots = np.arange(16)
            open_masks = (before == model.roles.mask) & (slots >= step.open) & (slots < step.open + 8)
            for values in (step.p_eos, step.p_void, step.top):
                assert (~np.isnan(values) == open_masks).all()
            assert ((step.top5_ids.reshape(-1, 5) >= 0).all(1) == open_masks).all()
    assert {trace.header.recorded for trace in recorded(model, "original")[0].traces} == {"canvas"}


def filled(model: Model, detail: str = "top5", **fields) -> tuple[list[int], Trace]:
    """A template with two gaps of two and three slots, and the trace of filling them."""
    gap, word = model.roles.mask, model.encode("a b c", raw=True)
    ids = [*word, gap, gap, *word, gap, gap, gap, *word]
    plan = model.plan("void", canvas=5, block=5, **fields).for_gaps(ids, model.roles)
    recorder = Recorder(model, plan_name="void", detail=detail)
    engine = model.engine()
    engine.submit(ids, plan, observe=recorder.observe)
    for event in engine.events():
        recorder(event)
    return ids, recorder.traces[0]


def test_a_template_is_replayed_with_its_fixed_text(model, tmp_path):
    ids, trace = filled(model)
    write(tmp_path / "t.jsonl", [trace])
    (again,) = read(tmp_path / "t.jsonl")
    prompt = len(again.header.prompt.ids)
    assert [*again.header.prompt.ids, *again.header.template] == ids
    first, *_, last = (canvas.tolist() for canvas in again.canvases())
    assert sum(token == model.roles.mask for token in first) == again.passes[0].masks == 4
    assert last == list(again.result.ids)
    fixed = [place for place, token in enumerate(ids[prompt:]) if token != model.roles.mask]
    assert [last[place] for place in fixed] == [ids[prompt + place] for place in fixed]
    for step in again.passes:
        assert step.length == len(ids) - prompt
        assert np.isnan(step.p_eos[fixed]).all()
        assert not np.isnan(np.delete(step.p_eos, fixed)).any()
