"""Every family: its releases load exactly, compute what their code computes, and leave as they came."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.core_model_loading import revert_weight_conversion

from originals import odd_model, stored, stored_tensors, write_original
from plain_forward import plain_forward, plain_llada, plain_llada2
from voidpad.errors import AssumedWarning, ConfigError, WeightsError
from voidpad.files import read_json
from voidpad.models import (
    DREAM,
    FAMILIES,
    LLADA,
    Model,
    export,
    load,
    open_checkpoint,
    random_model,
    save,
)
from voidpad.models.families import recognise
from voidpad.models.fresh import random_net

EVERY = pytest.mark.parametrize("name", FAMILIES)
BOTH = pytest.mark.parametrize("name", ["llada", "dream"])
LLADA2, LLADA_MOE = FAMILIES["llada2"], FAMILIES["llada_moe"]
CAUSAL = [name for name, family in FAMILIES.items() if family.causal_block]
ROWS = [[7, 20, 33, 12, 40, 41, 9, 0, 0, 0, 0], [9, 40, 0, 0, 0], [50, 31]]


@pytest.fixture(scope="module")
def originals() -> dict[str, Model]:
    return {name: odd_model(name, **({"causal_block": 3} if name in CAUSAL else {})) for name in FAMILIES}


@pytest.fixture
def released(originals, tmp_path):
    """Writes a release of a family; its config.json states the block where the family has a field for it."""

    def write(name: str, place: str = "released", **changes) -> Path:
        field = FAMILIES[name].block_field
        stated = {field: 3} if field else {}
        return write_original(originals[name], tmp_path / place, **stated | changes)

    return write


def opened(folder: Path, name: str) -> Model:
    return load(folder, causal_block=3 if name == "llada2" else None)  # no field states LLaDA2's block


def logits(model: Model, row: list[int]) -> torch.Tensor:
    """Raw logits of one row under the attention of the model."""
    number = torch.arange(len(row)) // (model.card.causal_block or len(row))
    seen = (number[None, :] <= number[:, None])[None, None]
    with torch.inference_mode():
        return model.net(torch.tensor([row]), attention_mask=seen).logits[0]


def rewrite(folder: Path, config: dict) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# The releases


@pytest.mark.parametrize(
    ("name", "count", "wide"),
    [
        ("llada-8b-instruct", 291, ""),
        ("dream-7b-instruct", 339, ""),
        ("sdar-8b-chat", 399, ""),
        ("llada2.0-mini", 14813, ""),
        ("llada2.1-mini", 14813, "correction_bias"),  # stored in float32, the others in bfloat16
    ],
)
def test_every_released_tensor_has_its_place(data_dir, name, count, wide):
    folder = data_dir / "hub" / name
    values, index = read_json(folder / "config.json"), read_json(folder / "model.safetensors.index.json")
    family = recognise(values, where=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the released config has no unknown field
        config = family.read_config(values, where=name)
    with torch.device("meta"):
        net = family.net_class(config)
    state, placed = net.state_dict(), []
    for stock in map(family.stock_name, index["weight_map"]):
        placed += [stock.replace("qkv", kind) for kind in "qkv"] if "qkv_proj" in stock else [stock]
    assert len(index["weight_map"]) == count
    assert sorted(placed) == sorted(stored_tensors(state)) == sorted(revert_weight_conversion(net, state))
    assert all(family.released_name(family.stock_name(one)) == one for one in index["weight_map"])
    assert config.is_causal is False
    # The released total size is that of these shapes, which pins them all at once.
    sizes = [(4 if wide and part.endswith(wide) else 2) * tensor.numel() for part, tensor in state.items()]
    assert index["metadata"]["total_size"] == sum(sizes)


@EVERY
def test_logits_are_those_of_a_plain_implementation(released, name):
    folder = released(name)
    loaded, tensors, config = opened(folder, name), stored(folder), read_json(folder / "config.json")
    plain = {"llada": plain_llada, "llada2": plain_llada2}.get(name, plain_forward)
    if name == "llada_moe":
        config["norm_topk_prob"] = False  # whatever the config says
    for row in ROWS:
        wanted = plain(tensors, config, row, loaded.card.causal_block or None)
        assert (logits(loaded, row) - wanted).abs().max() <= 1e-5


@EVERY
@pytest.mark.parametrize("shards", [1, 3])
def test_a_release_loads_saves_and_leaves_as_it_came(originals, released, tmp_path, name, shards):
    model, folder = originals[name], released(name, shards=shards)
    loaded = opened(folder, name)
    save(loaded, tmp_path / "saved")
    again = load(tmp_path / "saved")
    for one in (loaded, again):
        assert (one.family, one.card) == (FAMILIES[name], model.card)
        assert not one.net.training
        state, wanted = one.net.state_dict(), model.net.state_dict()
        assert state.keys() == wanted.keys()
        assert all(torch.equal(state[part], wanted[part]) for part in wanted)
        assert all((logits(one, row) - logits(model, row)).abs().max() <= 1e-6 for row in ROWS)
    assert not any(".experts.0." in part for part in stored(tmp_path / "saved"))
    export(loaded, tmp_path / "back")
    export(again, tmp_path / "made", like=folder)
    for back in (tmp_path / "back", tmp_path / "made"):
        assert read_json(back / "config.json") == read_json(folder / "config.json")
        before, after = stored(folder), stored(back)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[part], after[part]) for part in before)
        assert load(back).card == model.card
        (back / "voidpad.json").unlink()  # what another program reads
        assert opened(back, name).card == model.card


@EVERY
def test_a_release_decodes_as_the_model_it_was_made_from(originals, released, name):
    loaded = opened(released(name), name)
    presets = FAMILIES[name].decoding.presets if name in CAUSAL else ["original", "void"]
    for preset in presets:
        fields = {"canvas": 7} if name in CAUSAL else {"canvas": 8, "block": 4}
        answers = [
            [
                (r.tokens, r.passes_decode, r.stop_reason)
                for r in one.generate(["hi", "a longer one"], preset, **fields)
            ]
            for one in (originals[name], loaded)
        ]
        assert answers[0] == answers[1]


def test_a_tensor_in_two_shards_is_that_of_the_index(originals, released):
    folder = released("dream", shards=2)
    home, whole = read_json(folder / "model.safetensors.index.json")["weight_map"], stored(folder)
    for path in folder.glob("*.safetensors"):
        both = {name: t if home[name] == path.name else torch.zeros_like(t) for name, t in whole.items()}
        save_file(both, path)
    assert torch.equal(logits(load(folder), ROWS[0]), logits(originals["dream"], ROWS[0]))


@pytest.mark.parametrize("name", ["llada", "dream", "llada_moe"])
def test_eos_has_an_ordinary_embedding_row(released, name):
    """The releases pad with EOS; a padding row would get no gradient."""
    net = load(released(name, pad_token_id=1)).net
    net(torch.ones(1, 4, dtype=torch.long)).logits[..., 9].sum().backward()
    assert net.get_input_embeddings().weight.grad[1].abs().max() > 0


# config.json


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llada", "alibi", True),
        ("llada", "block_type", "sequential"),
        ("llada", "layer_norm_type", "default"),
        ("llada", "include_qkv_bias", True),
        ("llada", "block_group_size", 2),
        ("llada", "clip_qkv", 8.0),
        ("dream", "use_sliding_window", True),
        ("dream", "use_mrope", True),
        ("dream", "rope_scaling", {"type": "yarn"}),
        ("dream", "hidden_act", "gelu"),
        ("illada", "layer_norm_eps", 1e-5),
        ("llada_moe", "qk_layernorm", False),
        ("llada_moe", "shared_expert_intermediate_size", 512),
        ("llada_moe", "moe_layer_freq", [1, 0]),
        ("llada_moe", "partial_rotary_factor", 0.5),
        ("llada_moe", "moe_router_enable_expert_bias", True),
        ("sdar", "attention_bias", True),
        ("sdar_moe", "decoder_sparse_step", 2),
        ("sdar_moe", "mlp_only_layers", [1]),
        ("fast_dllm", "layer_types", ["full_attention", "sliding_attention"]),
        ("llada2", "score_function", "softmax"),
        ("llada2", "use_qk_norm", False),
        ("llada2", "partial_rotary_factor", 1.0),
        ("llada2", "rotary_dim", 12),
        ("llada2", "use_bias", True),
        ("llada2", "norm_head", True),
        ("llada2", "using_split_qkv_in_self_attention", True),
    ],
)
def test_fields_that_change_the_function_are_refused(released, name, field, value):
    with pytest.raises(WeightsError, match=field):
        open_checkpoint(released(name, **{field: value}))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("llada", "block_type"),
        ("llada", "d_model"),
        ("dream", "rope_theta"),
        ("llada_moe", "qk_layernorm"),
        ("llada_moe", "moe_layer_freq"),
        ("sdar_moe", "norm_topk_prob"),
    ],
)
def test_fields_that_must_be_there(released, name, field):
    folder = released(name)
    config = read_json(folder / "config.json")
    del config[field]
    with pytest.raises(WeightsError, match=field):
        open_checkpoint(rewrite(folder, config))


def test_dream_fields_that_nothing_reads_may_be_absent(originals, released):
    """Dream-Coder and DiffuCoder grew from a config without use_mrope."""
    folder, absent = released("dream"), ("use_mrope", "use_sliding_window", "hidden_act")
    config = read_json(folder / "config.json")
    rewrite(folder, {field: value for field, value in config.items() if field not in absent})
    assert torch.equal(logits(load(folder), ROWS[0]), logits(originals["dream"], ROWS[0]))


@BOTH
def test_unknown_config_fields(originals, released, name):
    """One warning lists them; a field that the authors' class writes gives none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", AssumedWarning)
        load(released(name, "silent", train_max_sequence_length=1024))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(released(name, "odd", my_trainer=True, other_field=[1]))
    [warning] = [one for one in caught if issubclass(one.category, AssumedWarning)]
    assert all(field in str(warning.message) for field in ("my_trainer", "other_field"))
    assert torch.equal(logits(model, ROWS[0]), logits(originals[name], ROWS[0]))
    with pytest.raises(WeightsError, match="final_logit_softcapping="):
        load(released(name, "refused", my_trainer=True, final_logit_softcapping=30.0))


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "llada", "architectures": ["LLaDAMoEModelLM"]}, LLADA_MOE),
        ({"model_type": "llada", "num_experts": 64}, LLADA_MOE),
        ({"model_type": "lladamoe"}, LLADA_MOE),
        ({"model_type": "llada", "architectures": ["LLaDAModelLM"]}, LLADA),
        ({"model_type": "dream", "num_experts": 64}, None),
        ({"model_type": "wedlm"}, None),
        ({"model_type": "llama"}, None),
    ],
)
def test_the_type_and_the_experts_tell_the_family(config, family):
    if family is None:
        with pytest.raises(WeightsError, match=f"{config['model_type']}.* is not covered"):
            recognise(config, where="folder")
    else:
        assert recognise(config, where="folder") is family
        with pytest.raises(WeightsError, match="is not covered as family"):
            recognise(config, where="folder", given="llada" if family is LLADA_MOE else "llada_moe")


def test_a_plain_qwen2_must_be_named_by_the_user(tmp_path):
    """Open-dCoder is a tied Qwen2 whose config.json does not say that it is a masked diffusion model."""
    model = random_model("dream")
    model.net = random_net(DREAM.config(model.config.to_dict() | {"tie_word_embeddings": True}), seed=1)
    folder = write_original(model, tmp_path / "dcoder", model_type="qwen2", mask_token_id=None)
    with pytest.raises(WeightsError, match=r"'qwen2' is not covered.*--family dream"):
        load(folder)
    save(load(folder, family="dream", roles={"mask": 40}), tmp_path / "saved")
    for loaded in (load(folder, family="dream", roles={"mask": 40}), load(tmp_path / "saved")):
        assert (loaded.family, loaded.roles.mask) == (DREAM, 40)
        assert torch.equal(logits(loaded, ROWS[0]), logits(model, ROWS[0]))
    export(load(folder, family="dream", roles={"mask": 40}), tmp_path / "out")
    assert read_json(tmp_path / "out" / "config.json") == read_json(folder / "config.json") | {
        "mask_token_id": 40
    }
    assert load(tmp_path / "out").family is DREAM  # the card names it
    for place, family in ((folder, "gpt"), (folder, "llada"), (tmp_path / "saved", "llada")):
        with pytest.raises((ConfigError, WeightsError), match=f"'{family}'"):
            load(place, family=family)


def test_the_table_of_the_docs_is_the_table_of_families():
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    table = page.split("| family | checkpoints | class |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    assert {row[0].strip("| ") for row in rows} == FAMILIES.keys()
    for name, _, kind, shift, *_ in rows:
        family = FAMILIES[name.strip("| ")]
        assert family.net_class.__name__ == f"{kind.split(',')[0]}ForCausalLM"
        assert family.shift == int(shift)


# iLLaDA and LLaDA2


def test_illada_has_ids_and_a_plan_of_its_own(released):
    """Its tokenizer declares no mask token."""
    folder = released("illada")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<reserved>", "<extra>"]
    table = {name: number for number, name in enumerate([*special, *"abcdefghijklmnopqrstuvwxyz ?"])}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=core, **named).save_pretrained(str(folder))
    loaded = load(folder)
    assert (loaded.roles.mask, loaded.roles.eos, loaded.default_plan) == (5, 2, "append-blocks")
    plan = loaded.plan()
    assert (plan.block, plan.length.canvas, plan.length.limit) == (32, 32, 2048)
    [result] = loaded.generate("what is it", raw=True, limit=96)
    assert result.canvas % 32 == 0
    assert 5 not in result.tokens


def test_llada2_chooses_experts_by_group_and_bias(released):
    """The plain implementation could not fail on routing if the groups or the biases never mattered."""
    folder = released("llada2")
    tensors, config = stored(folder), read_json(folder / "config.json")
    right = plain_llada2(tensors, config, ROWS[0], 3)
    unbiased = {k: torch.zeros_like(v) if k.endswith("expert_bias") else v for k, v in tensors.items()}
    assert (right - plain_llada2(tensors, config | {"topk_group": 4}, ROWS[0], 3)).abs().max() > 1e-3
    assert (right - plain_llada2(unbiased, config, ROWS[0], 3)).abs().max() > 1e-3


def test_llada2s_usual_block_needs_no_word(released):
    with warnings.catch_warnings():
        warnings.simplefilter("error", AssumedWarning)
        assert load(released("llada2")).card.causal_block == 32


def test_llada2_routes_in_float32(originals):
    config = originals["llada2"].config
    router = random_net(config, seed=1, dtype=torch.bfloat16).model.layers[1].mlp.gate
    assert router.e_score_correction_bias.dtype == torch.float32
    assert router(torch.randn(3, config.hidden_size))[1].dtype == torch.float32


def test_a_joined_tensor_of_another_size_is_refused(released):
    folder = released("llada2")
    name = "model.layers.1.attention.query_key_value.weight"
    tensors = stored(folder)
    save_file(tensors | {name: tensors[name][:-1].clone()}, folder / "model.safetensors")
    with pytest.raises(WeightsError):
        load(folder)
