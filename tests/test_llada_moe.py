"""LLaDA-MoE: the released layout loads exactly, computes what the release computes, decodes, trains and merges."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from originals import write_original
from plain_forward import plain_forward
from training_runs import materials, recipe
from voidpad.commands.cli import app
from voidpad.decode.presets import schema
from voidpad.engine.batching import Engine
from voidpad.engine.packed import PackedDenoiser
from voidpad.errors import ConfigError, WeightsError
from voidpad.files import read_json
from voidpad.models import FAMILIES, LLADA, Card, character_tokenizer, load, merge, random_model, save
from voidpad.models.families import recognise
from voidpad.roles import resolve
from voidpad.training.train import train

LLADA_MOE = FAMILIES["llada_moe"]
ROWS = [[7, 20, 33, 12, 0, 0, 0, 0], [9, 40, 0, 0, 0, 0, 0, 0]]


@pytest.fixture(scope="module")
def model():
    return random_model("llada_moe", kv_heads=2, experts=5, seed=3)


@pytest.fixture
def released(model, tmp_path):
    return write_original(model, tmp_path / "released")


def logits(model, rows=ROWS):
    with torch.inference_mode():
        return model.net(torch.tensor(rows)).logits


# Files


def test_it_computes_what_the_release_computes(released):
    tensors, config = load_file(released / "model.safetensors"), read_json(released / "config.json")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if "norm" in name:  # fresh ones are all 1, which would hide where they are applied
            tensors[name] = 0.5 + torch.rand(tensor.shape, generator=generator)
    save_file(tensors, released / "model.safetensors")
    found = logits(load(released))[0]
    assert (found - plain_forward(tensors, config | {"norm_topk_prob": False}, ROWS[0])).abs().max() <= 5e-6
    assert (found - plain_forward(tensors, config | {"norm_topk_prob": True}, ROWS[0])).abs().max() > 0.05


@pytest.mark.parametrize("shards", [1, 3])
def test_a_released_checkpoint_loads_exactly(model, tmp_path, shards):
    loaded = load(write_original(model, tmp_path / "released", shards=shards))
    assert torch.equal(logits(loaded), logits(model))
    assert (loaded.family, loaded.roles, loaded.card) == (
        LLADA_MOE,
        model.roles,
        Card("llada_moe", model.roles),
    )
    save(loaded, tmp_path / "saved")
    assert not any(".experts.0." in name for name in load_file(tmp_path / "saved" / "model.safetensors"))
    again = load(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))
    assert again.net.config.norm_topk_prob is False


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "llada", "architectures": ["LLaDAMoEModelLM"]}, LLADA_MOE),
        ({"model_type": "llada", "num_experts": 64}, LLADA_MOE),
        ({"model_type": "lladamoe"}, LLADA_MOE),
        ({"model_type": "llada", "architectures": ["LLaDAModelLM"]}, LLADA),
    ],
)
def test_experts_tell_it_from_llada(config, family):
    assert recognise(config, where="folder") is family
    with pytest.raises(WeightsError, match="cannot be read as family"):
        recognise(config, where="folder", given="llada" if family is LLADA_MOE else "llada_moe")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qk_layernorm", False),
        ("shared_expert_intermediate_size", 512),
        ("moe_layer_freq", [1, 0]),
        ("clip_qkv", 8.0),
        ("partial_rotary_factor", 0.5),
        ("moe_router_enable_expert_bias", True),
    ],
)
def test_fields_that_are_not_covered(model, tmp_path, field, value):
    folder = write_original(model, tmp_path / "odd", **{field: value})
    with pytest.raises(WeightsError, match=field):
        load(folder)


@pytest.mark.parametrize("field", ["qk_layernorm", "moe_layer_freq", "rope_theta"])
def test_fields_that_must_be_there(released, field):
    config = read_json(released / "config.json")
    del config[field]
    (released / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=field):
        load(released)


def test_quantizing_would_leave_the_experts_as_they_are(model, tmp_path):
    save(model, tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"quantize='4bit' reaches linear layers only, not the experts"):
        load(tmp_path / "saved", quantize="4bit")


def test_a_role_end_ends_an_answer():
    tokenizer = character_tokenizer(60)
    tokenizer.add_tokens(["<|role_end|>"], special_tokens=True)
    roles = resolve(tokenizer, {}, rows=64, names=LLADA_MOE.role_names)
    assert tokenizer.convert_tokens_to_ids("<|role_end|>") in roles.ends


# Decoding


@pytest.mark.parametrize("name", ["void", "void-expansion", "original@authors"])
def test_every_plan_decodes_packed_as_padded(name):
    model = random_model("llada_moe", vocab=16, kv_heads=2, context=128, seed=7)
    with torch.no_grad():
        model.net.lm_head.weight[[model.roles.eos, model.roles.void]] *= 2
    small = {"canvas": 8, "block": 4, "limit": 16}
    known = {field.name for field in schema(name, LLADA_MOE.decoding)}
    chosen = model.plan(name, **{field: value for field, value in small.items() if field in known})
    prompts = [[12, 13, 14], [15], [11, 12, 15, 14, 13, 12, 11]]
    ended = [
        sorted(Engine(denoise, model.roles).run(prompts, chosen), key=lambda row: row.key)
        for denoise in (model.denoiser(), PackedDenoiser(model.denoiser()), model.default_denoiser())
    ]
    tokens = [
        [(row.tokens, row.stop_reason, row.canvas, row.passes_decode) for row in rows] for rows in ended
    ]
    assert tokens[0] == tokens[1] == tokens[2]
    assert all(row.tokens for row in ended[0])


# Training


def test_a_step_of_lora_on_the_attention(tmp_path):
    materials(tmp_path, "llada_moe")
    done = train(
        recipe(tmp_path, lora={"r": 4, "alpha": 8}, run={"steps": 1, "save_every": 1, "log_every": 1})
    )
    base, tuned = load(str(tmp_path / "start")), load(str(tmp_path / "start"), done.folder)
    assert tuned.card.padding == "void"
    trained = {name.split(".")[-1] for name in tuned.net.peft_config["default"].target_modules}
    assert trained == set(LLADA_MOE.lora_targets)
    assert not torch.equal(logits(tuned), logits(base))
    ran = CliRunner().invoke(
        app,
        ["merge", str(tmp_path / "start"), "--adapter", str(done.folder), "--out", str(tmp_path / "merged")],
    )
    assert ran.exit_code == 0, ran.output
    merged = load(tmp_path / "merged")
    assert (logits(merged) - logits(tuned)).abs().max() <= 1e-5
    assert torch.equal(logits(merged), logits(merge(tuned)))


def test_lora_on_experts_is_refused(tmp_path):
    materials(tmp_path, "llada_moe")
    with pytest.raises(ConfigError, match=r"lora.targets: .* 'down_proj'.* q_proj, k_proj"):
        train(recipe(tmp_path, lora={"targets": ("q_proj", "down_proj")}))


def test_an_adapter_of_the_experts_is_refused(model, tmp_path):
    from peft import LoraConfig, get_peft_model

    save(model, tmp_path / "base")
    base = load(tmp_path / "base")
    get_peft_model(
        base.net, LoraConfig(r=2, target_modules=["q_proj", "gate_proj", "up_proj"])
    ).save_pretrained(str(tmp_path / "adapter"))
    with pytest.raises(WeightsError, match=r"target_parameters"):
        load(tmp_path / "base", tmp_path / "adapter")
    config = read_json(tmp_path / "adapter" / "adapter_config.json")
    config |= {"target_parameters": None, "target_modules": ["q_proj", "gate_proj", "up_proj"]}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config | {"rank_pattern": {}}))
    with pytest.raises(WeightsError, match="adapts the experts"):
        load(tmp_path / "base", tmp_path / "adapter")


def test_a_mixture_from_scratch_is_refused(tmp_path):
    materials(tmp_path)
    settings = recipe(
        tmp_path,
        model={"name": None, "tokenizer": str(tmp_path / "start"), "scratch": {"family": "llada_moe"}},
    )
    with pytest.raises(ConfigError, match=r"scratch.family: 'llada_moe'.* llada, dream"):
        train(settings)
