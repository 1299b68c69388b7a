"""The Model that load returns: prompts in, text out; and the package's public face."""

import pytest
import torch

from originals import logits, write_dream, write_original
from voidpad.engine.events import Finished, Wrote
from voidpad.errors import ConfigError
from voidpad.files import read_json
from voidpad.models import load, random_model, save

BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


@pytest.fixture(scope="module")
def models():
    return {name: random_model(name, kv_heads=2, seed=3) for name in ("llada", "dream")}


# Roles, prompts, text


def test_dream_takes_the_authors_void(data_dir, tmp_path):
    folder = tmp_path / "dream"
    write_dream(data_dir, folder)
    ours = load(folder)
    assert (ours.roles.void, ours.roles.rainbow[1]) == (151667, 151668)
    theirs = load(folder, roles={"void": 56940, "rainbow": (56940, 86766)})
    assert theirs.roles.void == 56940
    assert theirs.text([64, 56940, 65, 151643, 64]) == "ab"
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "2+2?"},
    ]
    text = ours.tokenizer.decode(ours.encode(turns, system="Be brief."))
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    save(ours, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.encode(turns, system="Be brief.") == ours.encode(turns, system="Be brief.")
    assert again.encode(" " * 128 + "<|void|>", raw=True) == [56940, 151667]
    assert "auto_map" not in read_json(tmp_path / "saved" / "tokenizer_config.json")


def test_chat_template_with_system_and_turns(models):
    model = models["llada"]
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "add"},
    ]
    text = (
        "system: be nice<|eot_id|>user: hi<|eot_id|>assistant: yes?<|eot_id|>user: add<|eot_id|>assistant: "
    )
    assert model.encode(turns, system="be nice") == model.encode(text, raw=True)
    assert model.encode("hi") == model.encode([{"role": "user", "content": "hi"}])
    assert model.encode("hi", raw=True) == model.encode("hi")[6:8]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (" \n", {}, "empty"),
        ("", {"raw": True}, "empty"),
        ([], {}, "empty"),
        ("say <|mask|> now", {"raw": True}, "mask"),
        ("x" * 512, {"raw": True}, "context of 512"),
        ([{"role": "user"}], {}, "messages"),
        ([{"role": "assistant", "content": "a"}], {}, "assistant turn"),
        ([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], {"system": "c"}, "twice"),
        ([{"role": "user", "content": "b"}], {"raw": True}, "raw=True"),
        ("hi", {"raw": True, "system": "c"}, "raw=True"),
    ],
)
def test_prompts_that_cannot_be_answered(models, prompt, options, message):
    with pytest.raises(ConfigError, match=message):
        models["llada"].encode(prompt, **options)


def test_a_tokenizer_without_a_template_wants_raw(models, tmp_path):
    folder = write_original(models["llada"], tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    bare = load(folder)
    with pytest.raises(ConfigError, match="no chat template; use raw=True"):
        bare.encode("hi")
    assert bare.encode("hi", raw=True) == models["llada"].encode("hi", raw=True)


def test_text_is_cut_at_an_end_and_holds_no_special_token(models):
    model = models["llada"]
    hi, roles = model.encode("hi", raw=True), model.roles
    assert model.text([*hi, roles.void, *hi, roles.eos, *hi]) == "hihi"
    assert model.text([*hi, roles.ends[1], *hi]) == "hi"
    assert model.text([*hi, roles.eos, roles.rainbow[3], *hi], cut=False) == "hihi"
    assert model.text([]) == ""


# Random models and generation


def test_random_models_are_reproducible_and_of_the_asked_shape():
    state, sizes = (
        torch.get_rng_state(),
        {"vocab": 120, "heads": 6, "kv_heads": 3, "hidden": 24, "context": 96},
    )
    a, b, c = (random_model("dream", **sizes, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert (logits(a) == logits(b)).all()
    assert (logits(a) != logits(c)).any()
    config = a.net.config
    assert (config.num_attention_heads, config.num_key_value_heads, a.context) == (6, 3, 96)
    assert logits(a).shape == (2, 8, 120)
    text = "The answer: 2 + 2 = 4!\n#### 4"
    assert a.text(a.encode(text, raw=True)) == text


@BOTH
def test_generate_answers_in_order(models, family):
    prompts = ["hi", "what is 2+2?", [{"role": "user", "content": "add"}]]
    seen = []
    results = models[family].generate(prompts, "void", canvas=16, block=8, rows=2, progress=seen.append)
    assert [result.key for result in results] == [0, 1, 2]
    assert sorted(seen, key=lambda result: result.key) == results
    for prompt, result in zip(prompts, results, strict=True):
        (alone,) = models[family].generate(prompt, "void", canvas=16, block=8)
        assert (alone.tokens, alone.text, alone.passes_decode) == (
            result.tokens,
            result.text,
            result.passes_decode,
        )
        assert result.text == models[family].text(result.tokens)
        assert result.canvas == len(result.ids) <= 16


@BOTH
def test_stream_is_generate_pass_by_pass(models, family):
    steps = list(models[family].stream("hi", "original", canvas=16, block=8))
    (result,) = models[family].generate("hi", "original", canvas=16, block=8)
    assert len(steps) == result.passes_decode
    assert steps[-1].finished[0].ids == result.ids


def test_the_denoiser_is_aligned(models):
    """Row j of Dream's logits predicts token j + 1; after the denoiser both families speak of token j."""
    for name, shift in (("llada", 0), ("dream", 1)):
        model = models[name]
        (step, *_) = model.stream("hi", "original", canvas=8, block=8)
        raw = logits(model, step.before.ids.tolist())[0]
        place = step.where[0].nonzero()[:, 0] - shift
        assert (step.logits - raw[place]).abs().max() <= 1e-6


def test_a_canvas_beyond_the_context_is_refused(models):
    with pytest.raises(ConfigError, match="the model's context of"):
        models["llada"].generate("hi", "void")


def test_rules_that_grow_stay_inside_the_context():
    model = random_model(context=64)
    (result,) = model.generate("hi", "void-expansion", canvas=16, block=16, tau_nonvoid=0.0)
    assert (result.canvas, result.passes_probe) == (32, 2)  # 20 prompt tokens leave 44: two whole blocks
    assert model.fit([20] * 10, model.plan("daedal", canvas=16, block=16)).length.limit == 48


# The package


def test_a_rows_limit_is_the_plans_cut_to_the_context_and_to_max_tokens(models):
    model = models["llada"]
    plan = model.plan("void-expansion", canvas=16, limit=48, block=8)
    room = model.context - 20
    assert model.row_limit([12] * 20, plan) == min(48, room // 8 * 8)
    for wanted, slots in ((1, 8), (8, 8), (9, 16), (17, 24), (40, 40), (41, 48), (10**9, 48)):
        assert model.row_limit([12] * 20, plan, max_tokens=wanted) == min(slots, room // 8 * 8)
    assert model.row_limit([12] * (model.context - 11), plan, max_tokens=30) == 8
    with pytest.raises(ConfigError, match="the model's context of"):
        model.row_limit([12] * (model.context - 7), plan)
    with pytest.raises(ConfigError, match="max_tokens=0 leaves no room"):
        model.row_limit([12], plan, max_tokens=0)


@pytest.mark.parametrize("name", ["original", "void-expansion", "daedal", "rho-eos", "smart-crop"])
def test_rows_with_limits_of_their_own_keep_to_them_in_one_group(models, name):
    model = models["llada"]
    growing = {} if name in ("original", "smart-crop") else {"limit": 48}
    plan = model.plan(name, canvas=16, block=8, **growing)
    engine = model.engine()
    ids = model.encode("hi")
    limits = {
        engine.submit(ids, plan, limit=model.row_limit(ids, plan, max_tokens=n)): n for n in (5, 9, 16, 200)
    }
    groups = 0
    for event in engine.events():
        if isinstance(event, Wrote):
            groups += 1
            assert groups == engine.passes
        elif isinstance(event, Finished):
            assert 0 < event.outcome.canvas <= -(-limits[event.handle] // 8) * 8
