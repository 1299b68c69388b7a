"""Mixtures of experts: packed passes, and LoRA around the experts, which are fused tensors and no linear layers."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from typer.testing import CliRunner

from originals import logits
from training_runs import materials, recipe
from voidpad.commands.cli import app
from voidpad.decode.presets import schema
from voidpad.engine.batching import Engine
from voidpad.engine.packed import PackedDenoiser
from voidpad.errors import ConfigError, WeightsError
from voidpad.files import read_json
from voidpad.models import FAMILIES, load, merge, random_model, save
from voidpad.training.train import train

LLADA_MOE = FAMILIES["llada_moe"]


@pytest.mark.parametrize("name", ["void", "void-expansion", "original@authors"])
def test_every_plan_decodes_packed_as_padded(name):
    model = random_model("llada_moe", vocab=16, kv_heads=2, context=128, seed=7)
    with torch.no_grad():
        model.net.lm_head.weight[[model.roles.eos, model.roles.void]] *= 2
    small = {"canvas": 8, "block": 4, "limit": 16}
    known = schema(name, LLADA_MOE.decoding).keys()
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


def test_a_step_of_lora_on_the_attention(tmp_path):
    start = materials(tmp_path, "llada_moe") / "start"
    run = {"steps": 1, "save_every": 1, "log_every": 1}
    done = train(recipe(tmp_path, lora={"r": 4, "alpha": 8}, run=run))
    base, tuned = load(start), load(start, done.folder)
    assert tuned.card.padding == "void"
    trained = {name.split(".")[-1] for name in tuned.net.peft_config["default"].target_modules}
    assert trained == set(LLADA_MOE.lora_targets)
    assert not torch.equal(logits(tuned), logits(base))
    words = ["merge", start, "--adapter", done.folder, "--out", tmp_path / "merged"]
    ran = CliRunner().invoke(app, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    merged = load(tmp_path / "merged")
    assert (logits(merged) - logits(tuned)).abs().max() <= 1e-5
    assert torch.equal(logits(merged), logits(merge(tuned)))


def test_what_would_train_the_experts_is_refused(tmp_path):
    materials(tmp_path, "llada_moe")
    with pytest.raises(ConfigError, match=r"lora.targets: .* 'down_proj'.* q_proj, k_proj"):
        train(recipe(tmp_path, lora={"targets": ("q_proj", "down_proj")}))
    scratch = {"name": None, "tokenizer": str(tmp_path / "start"), "scratch": {"family": "llada_moe"}}
    with pytest.raises(ConfigError, match=r"scratch.family: 'llada_moe'.* llada, dream"):
        train(recipe(tmp_path, model=scratch))


def test_an_adapter_of_the_experts_and_quantized_experts_are_refused(tmp_path):
    save(random_model("llada_moe"), tmp_path / "base")
    with pytest.raises(ConfigError, match=r"quantize='4bit' reaches linear layers only, not the experts"):
        load(tmp_path / "base", quantize="4bit")
    targets = ["q_proj", "gate_proj", "up_proj"]
    net = get_peft_model(load(tmp_path / "base").net, LoraConfig(r=2, target_modules=targets))
    net.save_pretrained(str(tmp_path / "adapter"))
    with pytest.raises(WeightsError, match=r"target_parameters"):
        load(tmp_path / "base", tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    changed = {"target_parameters": None, "target_modules": targets, "rank_pattern": {}}
    path.write_text(json.dumps(read_json(path) | changed))
    with pytest.raises(WeightsError, match="adapts the experts"):
        load(tmp_path / "base", tmp_path / "adapter")
