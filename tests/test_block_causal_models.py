"""Block-causal families: released folders load exactly, state their block, and refuse what has no meaning for them."""

import json
import re

import httpx
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from block_causal import write_released
from plain_forward import plain_forward
from serving import serving
from training_runs import materials, recipe
from voidpad.commands.cli import app
from voidpad.decode import Rows, plan
from voidpad.engine.packed import PackedDenoiser
from voidpad.errors import AssumedWarning, ConfigError, WeightsError
from voidpad.experiments.bench import decoders
from voidpad.experiments.calibrate import Search, survey
from voidpad.files import read_json
from voidpad.models import FAMILIES, Model, export, load, random_model, read_card, save
from voidpad.models.families import recognise
from voidpad.models.fresh import random_net
from voidpad.models.text import read_tokenizer
from voidpad.roles import resolve
from voidpad.training.train import train

NAMES = [name for name, family in FAMILIES.items() if family.causal_block and family.block_field]
ALL = pytest.mark.parametrize("name", [*NAMES, "llada2"])
EVERY = pytest.mark.parametrize("name", NAMES)  # whose config.json may state the block
FIELDS = {"sdar": "block_size", "sdar_moe": "block_size", "fast_dllm": "bd_size"}
ROWS = [[7, 20, 33, 12, 40, 41, 9, 0, 0, 0, 0], [9, 40, 0, 0, 0], [50, 31, 12, 12, 0, 8, 0, 0]]


def made(name: str, **fields) -> Model:
    """A random model of the family whose config is like the releases', with blocks of 3."""
    fields = {"kv_heads": 2, "seed": 5, "causal_block": 3} | fields
    model = random_model(name, **fields)
    values = model.net.config.to_dict() | {"tie_word_embeddings": name == "fast_dllm"}
    if name != "fast_dllm":
        values |= {"head_dim": 12}  # of its own, as in SDAR-4B: 2560 / 32 is not 128
    if name == "sdar_moe":
        values |= {"norm_topk_prob": True}
    model.net = random_net(model.family.config(values), seed=5)
    with torch.no_grad():
        for parameter in model.net.parameters():
            # Norms and biases start as ones and zeros, which would hide them.
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: made(name) for name in (*NAMES, "llada2")}


def canvas_of(model: Model) -> Rows:
    width = max(map(len, ROWS))
    ids = torch.tensor([row + [model.roles.eos] * (width - len(row)) for row in ROWS])
    prompt, stop = torch.tensor([3, 1, 4]), torch.tensor([len(row) for row in ROWS])
    return Rows.of(ids, prompt, stop, model.roles)


# Released files


@EVERY
def test_logits_are_those_of_an_independent_forward_pass(models, name, tmp_path):
    folder = write_released(models[name], tmp_path / "released", **{FIELDS[name]: 3})
    loaded, tensors = load(folder), load_file(folder / "model.safetensors")
    canvas = canvas_of(loaded)
    shift = loaded.family.shift
    found = loaded.denoiser()(canvas, canvas.slots).split(canvas.slots.sum(1).tolist())
    for row, logits in zip(ROWS, found, strict=True):
        wanted = plain_forward(tensors, read_json(folder / "config.json"), row, 3)
        first = len(row) - len(logits) - shift
        assert (logits - wanted[first : len(row) - shift]).abs().max() <= 1e-5


@EVERY
def test_released_folders_load_decode_save_and_load_again(models, name, tmp_path):
    loaded = load(write_released(models[name], tmp_path / "released", **{FIELDS[name]: 3}))
    assert loaded.family is FAMILIES[name]
    assert loaded.card == models[name].card
    save(loaded, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert read_card(tmp_path / "saved").causal_block == again.card.causal_block == 3
    prompts = ["hi", "what?", "a longer prompt"]
    for preset in loaded.family.decoding.presets:
        answers = [
            [(r.tokens, r.passes_decode, r.stop_reason) for r in one.generate(prompts, preset, canvas=7)]
            for one in (models[name], loaded, again)
        ]
        assert answers[0] == answers[1] == answers[2]
        for result, prompt in zip(loaded.generate(prompts, preset, canvas=7), prompts, strict=True):
            assert result.canvas >= 7
            assert (len(loaded.encode(prompt)) + result.canvas) % 3 == 0
            assert result.approximations == ()


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_logits_are_the_plain_ones(name, dtype):
    if FAMILIES[name].experts and dtype is torch.float64:
        pytest.skip("torch multiplies grouped matrices in float32 and below")
    model = random_model(name, kv_heads=2, causal_block=3, dtype=dtype)
    canvas = canvas_of(model)
    plain = model.denoiser()(canvas, canvas.slots)
    few = canvas.slots & (canvas.offset == 5)
    limit = 1e-5 if dtype is torch.float32 else 1e-12
    for bucket in (1, 16):
        packed = PackedDenoiser(model.denoiser(), bucket=bucket)
        assert (packed(canvas, canvas.slots) - plain).abs().max() <= limit
        assert (packed(canvas, few) - plain[few[canvas.slots]]).abs().max() <= limit  # a narrow last layer


@ALL
def test_a_slot_sees_its_block_and_nothing_after_it(models, name):
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


# The size of a block


def test_the_block_is_given_or_stored_or_stated_or_the_usual_one(models, tmp_path):
    plain = write_released(models["sdar"], tmp_path / "plain")
    with pytest.warns(AssumedWarning, match="4 is the usual size"):
        assert load(plain).card.causal_block == 4
    stated = write_released(models["sdar"], tmp_path / "SDAR-1.7B-Chat-b16")
    assert load(stated).card.causal_block == 16
    written = write_released(models["sdar"], tmp_path / "written-b16", block_size=8)
    assert load(written).card.causal_block == 8
    assert load(written, causal_block=2).card.causal_block == 2
    save(load(plain, causal_block=2), tmp_path / "saved")
    assert load(tmp_path / "saved").card.causal_block == 2
    assert load(tmp_path / "saved").plan().causal.size == 2
    save(random_model(), tmp_path / "llada")
    odd = write_released(models["sdar"], tmp_path / "wrong", block_size=0)
    for folder, given in ((odd, None), (tmp_path / "llada", 4)):
        with pytest.raises(WeightsError, match="causal_block"):
            load(folder, causal_block=given)
    card = tmp_path / "saved" / "voidpad.json"
    card.write_text(json.dumps({k: v for k, v in read_json(card).items() if k != "causal_block"}))
    with pytest.raises(WeightsError, match="causal_block"):
        load(tmp_path / "saved")


def test_commands_say_what_they_assumed(models, tmp_path):
    folder = write_released(models["sdar"], tmp_path / "plain")
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


def test_released_sdar_roles(data_dir):
    """The tokenizer's files, without its vocabulary of words: the special tokens are what the roles are made of."""
    folder = data_dir / "hub" / "sdar-8b-chat"
    tokens = read_json(folder / "tokenizer_config.json")["added_tokens_decoder"]

    class Names:
        """The part of a tokenizer that `resolve` reads."""

        mask_token_id = None
        eos_token_id = 151643

        def get_vocab(self):
            return {token["content"]: int(number) for number, token in tokens.items()}

        def __len__(self):
            return 151936  # no spare row: nothing is added

        def add_tokens(self, names, special_tokens):
            assert names == []

        def convert_tokens_to_ids(self, names):
            return []

    family = FAMILIES["sdar"]
    roles = resolve(Names(), read_json(folder / "config.json"), rows=151936, names=family.role_names)
    assert (roles.mask, roles.eos, set(roles.ends)) == (151669, 151643, {151643, 151645})
    assert set(roles.ends) == set(read_json(folder / "generation_config.json")["eos_token_id"])


def test_fast_dllm_stops_at_both_ids(models, tmp_path):
    folder = write_released(models["fast_dllm"], tmp_path / "fast", bd_size=4)
    text = (folder / "tokenizer.json").read_text().replace("<|eot_id|>", "<|im_end|>")
    (folder / "tokenizer.json").write_text(text)
    names = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names).replace("<|eot_id|>", "<|im_end|>"))
    vocabulary = read_tokenizer(folder).get_vocab()
    roles = load(folder).roles
    assert roles.eos == vocabulary["<|im_end|>"]
    assert set(roles.ends) == {vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("sdar", "attention_bias", True),
        ("sdar_moe", "decoder_sparse_step", 2),
        ("sdar_moe", "mlp_only_layers", [1]),
        ("fast_dllm", "layer_types", ["full_attention", "sliding_attention"]),
        ("fast_dllm", "use_sliding_window", True),
    ],
)
def test_config_fields_that_are_not_covered(models, tmp_path, name, field, value):
    folder = write_released(models[name], tmp_path / "odd", **{FIELDS[name]: 4, field: value})
    with pytest.raises(WeightsError, match=field):
        load(folder)


@EVERY
def test_a_release_leaves_as_it_came(models, name, tmp_path):
    released = write_released(models[name], tmp_path / "released", **{FIELDS[name]: 3})
    loaded = load(released)
    export(loaded, tmp_path / "back")
    save(loaded, tmp_path / "saved")
    export(load(tmp_path / "saved"), tmp_path / "made", like=released)
    tensors = load_file(released / "model.safetensors")
    for folder in (tmp_path / "back", tmp_path / "made"):
        again = load_file(folder / "model.safetensors")
        assert tensors.keys() == again.keys()
        assert all(torch.equal(tensors[part], again[part]) for part in tensors)
        assert load(folder).card.causal_block == 3
        (folder / "voidpad.json").unlink()  # what another program reads
        assert load(folder).card.causal_block == 3
    config = read_json(released / "config.json")
    assert read_json(tmp_path / "back" / "config.json") == config
    assert read_json(tmp_path / "made" / "config.json") == config


# What has no meaning


@ALL
def test_plans_of_full_attention_are_refused(models, name):
    model = models[name]
    for preset in ("original", "void-expansion"):
        with pytest.raises(ConfigError, match=f"plan '{preset}'"):
            model.plan(preset)
    usual = next(iter(model.family.decoding.presets))
    assert model.default_plan == usual
    with pytest.raises(ConfigError, match=f"plan '{usual}' is unknown"):
        plan(usual)
    full = random_model()
    for one, chosen in (
        (model, full.plan("void", canvas=8, block=4)),
        (full, model.plan(canvas=9)),
        (model, random_model(name, causal_block=4).plan(canvas=8)),
    ):
        with pytest.raises(ConfigError, match="blocks"):
            one.generate("hi", chosen)


@ALL
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


@ALL
def test_training_is_refused(name, tmp_path):
    folder = materials(tmp_path, name)
    with pytest.raises(ConfigError, match="attention is block-causal"):
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
    plan = model.plan(canvas=64)
    assert model.row_limit([12] * 27, plan) == 1
    assert model.row_limit([12] * 5, plan, max_tokens=6) == 6
    engine = model.engine()
    engine.submit([12] * 27, plan, limit=1)
    [(_, outcome)] = engine.outcomes()
    assert outcome.canvas == 1
    with pytest.raises(ConfigError, match="context of 28"):
        model.row_limit([12] * 28, plan)
