"""iLLaDA-8B: Llama's own names, its ids, `append-blocks` by default, and the layout of its release."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from plain_forward import plain_forward
from voidpad.errors import WeightsError
from voidpad.files import read_json
from voidpad.models import FAMILIES, export, load, random_model, save

ILLADA = FAMILIES["illada"]
ROW = [9, 12, 30, 5, 5, 5, 5, 7]


@pytest.fixture
def released(tmp_path):
    """A random checkpoint as iLLaDA is released; its tokenizer declares no mask token."""

    def write(**changes):
        folder = tmp_path / "released"
        folder.mkdir()
        model = random_model("illada", kv_heads=2, hidden=32, layers=2, context=256, seed=8)
        config = model.net.config
        names = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size"
        values = {name: getattr(config, name) for name in names.split(" ")} | {
            "architectures": ["ILLaDAForCausalLM"],
            "model_type": "illada",
            "hidden_act": "silu",
            "max_position_embeddings": 256,
            "rms_norm_eps": config.rms_norm_eps,
            "layer_norm_eps": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
        }
        (folder / "config.json").write_text(json.dumps(values | changes))
        special = ["<s>", "<pad>", "</s>", "<unk>", "<reserved>", "<extra>"]
        table = {name: number for number, name in enumerate([*special, *"abcdefghijklmnopqrstuvwxyz ?"])}
        core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
        core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
        )
        tokenizer.save_pretrained(str(folder))
        tensors = {k: v.clone() for k, v in model.net.state_dict().items() if k != "lm_head.weight"}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return write


def test_a_release_loads_with_its_ids_and_plan(released):
    loaded = load(released())
    assert (loaded.family.name, loaded.roles.mask, loaded.roles.eos) == ("illada", 5, 2)
    assert loaded.default_plan == "append-blocks"
    plan = loaded.plan()
    assert (plan.block, plan.length.canvas, plan.length.limit) == (32, 32, 2048)
    [result] = loaded.generate("what is it", raw=True, limit=96)
    assert result.canvas % 32 == 0
    assert 5 not in result.tokens


def test_logits_are_those_of_a_plain_implementation(released):
    folder = released()
    loaded, tensors = load(folder), load_file(folder / "model.safetensors")
    with torch.inference_mode():
        found = loaded.net(torch.tensor([ROW])).logits[0]
    wanted = plain_forward(tensors, read_json(folder / "config.json"), ROW)
    assert (found - wanted).abs().max() <= 1e-5


def test_it_saves_and_leaves_as_it_came(released, tmp_path):
    folder = released()
    loaded = load(folder)
    save(loaded, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert (again.roles, again.default_plan) == (loaded.roles, "append-blocks")
    export(loaded, tmp_path / "back")
    export(again, tmp_path / "made", like=folder)
    tensors = load_file(folder / "model.safetensors")
    for back in (tmp_path / "back", tmp_path / "made"):
        written = load_file(back / "model.safetensors")
        assert written.keys() == tensors.keys()
        assert all(torch.equal(written[name], tensors[name]) for name in tensors)
        with torch.inference_mode():
            pair = [one.net(torch.tensor([ROW])).logits for one in (load(back), loaded)]
        assert torch.equal(*pair)
    assert read_json(tmp_path / "back" / "config.json").items() >= read_json(folder / "config.json").items()


@pytest.mark.parametrize(("field", "value"), [("layer_norm_eps", 1e-5), ("rope_scaling", {"type": "yarn"})])
def test_fields_that_change_the_function_are_refused(released, field, value):
    with pytest.raises(WeightsError, match=field):
        load(released(**{field: value}))
