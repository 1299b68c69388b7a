"""Named speeds: the switches they stand for, and where they are refused."""

import json

import pytest

from voidpad.decode import plan as make_plan
from voidpad.decode.plan import Plan
from voidpad.decode.presets import PRESETS
from voidpad.engine.speed import SPEEDS, with_speed
from voidpad.errors import ConfigError
from voidpad.models import load, random_model, save

QUICK = [name for name, speed in SPEEDS.items() if speed.approximates]
EACH = pytest.mark.parametrize("name", QUICK)
PROMPTS = ["Leo has 26 shells.\n(1) Leo takes 4.\nWhat is left after (1)?", "12 * 3 - 6", "What is 3 + 4?"]


@pytest.fixture(scope="module")
def builtin():
    return load("tiny-void", device="cpu")


@EACH
def test_a_speed_gives_the_tokens_of_its_switches_in_any_batch(builtin, name):
    speed, size = SPEEDS[name], {"canvas": 32, "block": 16}
    named = builtin.generate(PROMPTS, "void", speed=name, **size)
    given = builtin.generate(PROMPTS, "void", cache=speed.cache, **speed.fields, **size)
    assert [(r.ids, r.passes_decode) for r in named] == [(r.ids, r.passes_decode) for r in given]
    assert named[0].approximations == given[0].approximations != ()
    [alone] = builtin.generate(PROMPTS[1], "void", speed=name, rows=1, **size)
    assert alone.ids == named[1].ids
    streamed = list(builtin.stream(PROMPTS[0], "void", speed=name, **size))
    assert len(streamed) == named[0].passes_decode


def test_exact_is_what_happens_without_a_speed():
    assert with_speed("exact", "daedal", {"block": 4}, None) == ({"block": 4}, None)
    assert with_speed(None, Plan(), {"threshold": 0.9}, "dual") == ({"threshold": 0.9}, "dual")
    off = {"trim": False, "factor": None}  # a switch that is off is no conflict
    assert with_speed("fast", "void", off, None)[1] == SPEEDS["fast"].cache


@pytest.mark.parametrize(
    ("name", "fields", "cache", "named"),
    [
        ("fastest", {"threshold": 0.8}, None, "threshold=0.8"),
        ("fast", {"trim": True}, None, "trim=True"),
        ("fast", {next(iter(SPEEDS["fast"].fields)): 0}, None, "=0"),  # off, but the speed sets it
        ("fast", {}, "dual:4", "cache=dual:4"),
        ("exact", {"factor": 1.0}, "dual", "factor=1.0 and cache=dual"),
        ("quick", {}, None, "exact, fast, fastest"),
    ],
)
def test_a_speed_and_a_switch_exclude_each_other(name, fields, cache, named):
    with pytest.raises(ConfigError, match=named):
        with_speed(name, "void", fields, cache)


@EACH
@pytest.mark.parametrize("plan", PRESETS)
def test_presets_either_take_a_speed_or_refuse_it(name, plan):
    if plan in ("daedal", "rho-eos"):
        with pytest.raises(ConfigError, match=plan):
            with_speed(name, plan, {}, None)
    else:
        with_speed(name, f"{plan}@authors", {}, None)
        assert make_plan(plan, **SPEEDS[name].fields).approximations != ()
    with_speed("exact", plan, {}, None)


@EACH
def test_ready_plans_and_block_causal_models_take_no_speed(name, tmp_path, voidpad):
    with pytest.raises(ConfigError):
        with_speed(name, Plan(), {}, None)
    model = random_model("sdar", vocab=300, hidden=16, layers=1, causal_block=4)
    with pytest.raises(ConfigError):
        model.generate("hi", speed=name)
    assert model.generate("hi", canvas=4, speed="exact")[0].approximations == ()
    folder = tmp_path / "sdar"
    save(model, folder)
    (tmp_path / "prompts.txt").write_text("hi")
    for line, *words in (
        ("generate hi --model", folder, "--speed", name),
        ("serve --port 0", folder, "--speed", name),
        ("eval --tasks tiny_steps --model", folder, "--out", tmp_path / "run", "--speed", name),
        ("bench --model", folder, "--file", tmp_path / "prompts.txt"),
    ):
        assert voidpad(line, *words).status == 2, line
    assert not (tmp_path / "run").exists()


def test_a_run_folder_holds_the_switches_of_its_speed(voidpad, tmp_path):
    speed = SPEEDS["fastest"]
    given = " ".join(f"--set {field}={value}" for field, value in speed.fields.items())
    for name, options in (("named", "--speed fastest"), ("given", f"{given} --cache {speed.cache}")):
        prepared = voidpad(
            f"eval --stage prepare --tasks tiny_steps --limit 1 {options} --out", tmp_path / name
        )
        assert prepared.status == 0, prepared.err
    named, given = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("named", "given"))
    assert named["config"] == given["config"]
    assert named["config"]["cache"] == speed.cache
    refused = voidpad("eval --stage answer --speed fast --out", tmp_path / "named")
    assert refused.status == 2
    assert "--speed" in refused.err


def test_a_server_decodes_at_its_speed(voidpad, monkeypatch):
    from voidpad.serve import server
    from voidpad.serve.requests import ServedModel

    served = []

    def listen_to_nobody(load, options, *, ready):
        [(_, model)] = load().items()
        served.append(ServedModel(model, options))
        ready("here")
        return 0

    monkeypatch.setattr(server, "serve", listen_to_nobody)
    ran = voidpad("serve --speed fastest")
    assert ran.status == 0
    assert "approximate: entropy_bound=0.1, entropy_order=entropy, cache=ahead:3" in ran.err
    assert served[0].default.approximations == ("entropy_bound",)
    assert served[0].options.cache == SPEEDS["fastest"].cache
