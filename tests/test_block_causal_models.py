"""Block-causal families: what a slot sees, which block a checkpoint has, and what has no meaning for them."""

import json
import re

import httpx
import pytest
import torch
from typer.testing import CliRunner

from originals import odd_model, write_original
from serving import serving
from training_runs import materials, recipe
from voidpad.commands.cli import app
from voidpad.decode import Rows, plan
from voidpad.engine.packed import PackedDenoiser
from voidpad.errors import AssumedWarning, ConfigError, WeightsError
from voidpad.experiments.bench import decoders
from voidpad.experiments.calibrate import Search, survey
from voidpad.files import read_json
from voidpad.models import FAMILIES, Model, load, random_model, save
from voidpad.models.families import recognise
from voidpad.models.text import read_tokenizer
from voidpad.training.train import train

NAMES = [name for name, family in FAMILIES.items() if family.causal_block]
EVERY = pytest.mark.parametrize("name", NAMES)
ROWS = [[7, 20, 33, 12, 40, 41, 9, 0, 0, 0, 0], [9, 40, 0, 0, 0], [50, 31, 12, 12, 0, 8, 0, 0]]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: odd_model(name, causal_block=3) for name in NAMES}


def canvas_of(model: Model) -> Rows:
    width = max(map(len, ROWS))
    ids = torch.tensor([row + [model.roles.eos] * (width - len(row)) for row in ROWS])
    prompt, stop = torch.tensor([3, 1, 4]), torch.tensor([len(row) for row in ROWS])
    return Rows.of(ids, prompt, stop, model.roles)


# Attention


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_logits_are_the_plain_ones(name, dtype):
    if FAMILIES[name].experts and dtype is torch.float64:
        pytest.skip("torch multiplies grouped matrices in float32 and below")
    model = odd_model(name, causal_block=3)  # its norms of queries and keys are not ones
    model.net.to(dtype)
    canvas = canvas_of(model)
    plain = model.denoiser()(canvas, canvas.slots)
    few = canvas.slots & (canvas.offset == 5)
    limit = 1e-5 if dtype is torch.float32 else 1e-12
    for bucket in (1, 16):
        packed = PackedDenoiser(model.denoiser(), bucket=bucket)
        assert (packed(canvas, canvas.slots) - plain).abs().max() <= limit
        assert (packed(canvas, few) - plain[few[canvas.slots]]).abs().max() <= limit  # a narrow last layer


@EVERY
def test_a_slot_sees_its_block_and_nothing_after_it(models, name):
    """Aligned: slot j is read from row j of the logits, or from row j - 1 where the family shifts them."""
    model = models[name]
    canvas = canvas_of(model)
    late, same = canvas.ids.clone(), canvas.ids.clone()
    late[0, 9], same[0, 8] = 50, 50
    where = torch.zeros_like(canvas.slots)
    where[0, 7] = True
    plain = model.denoiser()(canvas, where)
    for ids, differs in ((late, False), (same, True)):
        other = Rows.of(ids, canvas.prompt, canvas.stop, canvas.roles)
        assert bool((model.denoiser()(other, where) - plain).abs().max() > 1e-4) is differs
    row, size = ROWS[0], model.card.causal_block
    number = torch.arange(len(row)) // size
    seen = (number[None, :] <= number[:, None])[None, None]
    with torch.inference_mode():
        raw = model.net(torch.tensor([row]), attention_mask=seen).logits[0]
    assert (plain[0] - raw[7 - model.family.shift]).abs().max() <= 1e-5


# The size of a block


def test_the_block_is_given_or_stored_or_stated_or_the_usual_one(models, tmp_path):
    plain = write_original(models["sdar"], tmp_path / "plain")
    with pytest.warns(AssumedWarning, match="4 is the usual size"):
        assert load(plain).card.causal_block == 4
    stated = write_original(models["sdar"], tmp_path / "SDAR-1.7B-Chat-b16")
    assert load(stated).card.causal_block == 16
    written = write_original(models["sdar"], tmp_path / "written-b16", block_size=8)
    assert load(written).card.causal_block == 8
    assert load(written, causal_block=2).card.causal_block == 2
    save(load(plain, causal_block=2), tmp_path / "saved")
    assert load(tmp_path / "saved").card.causal_block == 2
    assert load(tmp_path / "saved").plan().causal.size == 2
    save(random_model(), tmp_path / "llada")
    odd = write_original(models["sdar"], tmp_path / "wrong", block_size=0)
    for folder, given in ((odd, None), (tmp_path / "llada", 4)):
        with pytest.raises(WeightsError, match="causal_block"):
            load(folder, causal_block=given)
    card = tmp_path / "saved" / "voidpad.json"
    card.write_text(json.dumps({k: v for k, v in read_json(card).items() if k != "causal_block"}))
    with pytest.raises(WeightsError, match="causal_block"):
        load(tmp_path / "saved")


def test_commands_say_what_they_assumed(models, tmp_path):
    folder = write_original(models["sdar"], tmp_path / "plain")
    ran = CliRunner().invoke(app, ["generate", "hi", "--model", str(folder), "--canvas", "4"])
    assert ran.exit_code == 0, ran.output
    assert "4 is the usual size" in " ".join(ran.stderr.split())
    assert "plan: static" in ran.stderr
    words = ["merge", str(folder), "--causal-block", "3", "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert load(tmp_path / "out").card.causal_block == 3
    shown = CliRunner().invoke(app, ["plans", "--model", str(tmp_path / "out")])
    assert [name in shown.stdout for name in ("static", "dynamic", "void-expansion")] == [True, True, False]


# The released metadata


@pytest.mark.parametrize(
    ("name", "family", "block"), [("8b-chat", "sdar", None), ("4b-chat", "sdar", 4), ("30b-a3b-chat", "sdar_moe", None)]
)  # fmt: skip
def test_released_sdar_configs(data_dir, name, family, block):
    values = read_json(data_dir / "hub" / f"sdar-{name}" / "config.json")
    known = recognise(values, where=name)
    config = known.read_config(values, where=name)
    assert (known.name, known.stated_block(values, name)) == (family, block)
    assert (config.head_dim, config.is_causal, config.vocab_size) == (128, False, 151936)
    assert config.rope_parameters["rope_theta"] == 1e6
    if family == "sdar_moe":
        assert (config.num_experts, config.num_experts_per_tok, config.norm_topk_prob) == (128, 8, True)
        assert (config.hidden_size, config.moe_intermediate_size, config.num_hidden_layers) == (2048, 768, 48)


def test_fast_dllm_stops_at_both_ids(models, tmp_path):
    folder = write_original(models["fast_dllm"], tmp_path / "fast", bd_size=4)
    text = (folder / "tokenizer.json").read_text().replace("<|eot_id|>", "<|im_end|>")
    (folder / "tokenizer.json").write_text(text)
    names = read_json(folder / "tokenizer_config.json") | {"eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names).replace("<|eot_id|>", "<|im_end|>"))
    vocabulary = read_tokenizer(folder).get_vocab()
    roles = load(folder).roles
    assert roles.eos == vocabulary["<|im_end|>"]
    assert set(roles.ends) == {vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]}


# What has no meaning


@EVERY
def test_plans_of_full_attention_are_refused(models, name):
    model, full = models[name], random_model()
    for preset in ("original", "void-expansion"):
        with pytest.raises(ConfigError, match=f"plan '{preset}'"):
            model.plan(preset)
    usual = next(iter(model.family.decoding.presets))
    assert model.default_plan == usual
    with pytest.raises(ConfigError, match=f"plan '{usual}' is unknown"):
        plan(usual)
    for one, chosen in (
        (model, full.plan("void", canvas=8, block=4)),
        (full, model.plan(canvas=9)),
        (model, random_model(name, causal_block=4).plan(canvas=8)),
    ):
        with pytest.raises(ConfigError, match="blocks"):
            one.generate("hi", chosen)


@EVERY
def test_what_is_about_the_whole_canvas_is_refused(models, name, tmp_path):
    save(models[name], tmp_path / "saved")
    message = "attention is block-causal"
    with pytest.raises(ConfigError, match=message):
        survey(models[name], [[5, 6]], Search())
    with pytest.raises(ConfigError, match=message):
        decoders(models[name], 8, 4)
    for words in (["analyze", "overflow", "hi"], ["analyze", "attention", "hi"]):
        ran = CliRunner().invoke(app, [*words, "--model", str(tmp_path / "saved")])
        assert isinstance(ran.exception, ConfigError), ran.output
        assert re.search(message, str(ran.exception))
    folder = materials(tmp_path / "training", name)
    with pytest.raises(ConfigError, match=message):
        train(recipe(folder))
    scratch = {"family": name, "hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "context": 64}
    fresh = recipe(folder, model={"name": None, "tokenizer": str(folder / "start"), "scratch": scratch})
    with pytest.raises(ConfigError, match=rf"scratch\.family: '{name}'"):
        train(fresh)


# Around the decoder


def test_a_server_answers_with_a_block_causal_model(models):
    model = models["sdar"]
    with serving(model, plan="static", fields={"canvas": 24}, name="sdar", rows=4) as running:
        body = {"model": "sdar", "messages": [{"role": "user", "content": "what is it"}], "max_tokens": 7}
        reply = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=600).json()
        page = httpx.get(running.url, timeout=600).text
        odd = httpx.post(
            f"{running.url}/v1/chat/completions", json=body | {"voidpad": {"plan": "void"}}, timeout=600
        )
    [answer] = model.generate("what is it", canvas=7)
    assert reply["usage"]["completion_tokens"] <= 7
    assert reply["choices"][0]["message"]["content"] == model.text(answer.tokens[:7])
    assert ['"sequential"' in page, '"smart-crop"' in page] == [True, False]
    assert (odd.status_code, "no meaning for a block-causal model" in odd.text) == (400, True)


def test_a_prompt_may_fill_the_context_but_for_one_slot():
    model = random_model("sdar", context=30, causal_block=4)
    assert model.context == 28
    chosen = model.plan(canvas=64)
    assert model.row_limit([12] * 27, chosen) == 1
    assert model.row_limit([12] * 5, chosen, max_tokens=6) == 6
    engine = model.engine()
    engine.submit([12] * 27, chosen, limit=1)
    [(_, outcome)] = engine.outcomes()
    assert outcome.canvas == 1
    with pytest.raises(ConfigError, match="context of 28"):
        model.row_limit([12] * 28, chosen)
