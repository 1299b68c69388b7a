"""LLaDA2.0-mini and LLaDA2.1-mini: every released tensor has a place, logits are those of a plain implementation."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import revert_weight_conversion

from originals import stored_tensors
from plain_forward import plain_llada2
from voidpad.errors import AssumedWarning, WeightsError
from voidpad.files import read_json
from voidpad.models import FAMILIES, Model, character_tokenizer, export, load, random_model, save
from voidpad.models.families import recognise
from voidpad.models.fresh import random_net

LLADA2 = FAMILIES["llada2"]
MINIS = pytest.mark.parametrize("name", ["llada2.0-mini", "llada2.1-mini"])
SPECIAL = {"num_hidden_layers": 3, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "head_dim": 12}


@pytest.fixture(scope="module")
def model() -> Model:
    """A small LLaDA2 with groups of experts, one dense layer, and norms and biases that are not trivial."""
    model = random_model("llada2", kv_heads=2, experts=16, intermediate=24, causal_block=4, seed=6)
    values = model.net.config.to_dict() | SPECIAL | {"routed_scaling_factor": 2.5, "num_mtp_layers": 0}
    model.config = LLADA2.config(values)
    model.net = random_net(model.config, seed=6)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, tensor in model.net.state_dict().items():
            if tensor.dim() == 1:
                tensor += 0.3 * torch.randn(tensor.shape, generator=draw)
            elif name.endswith("gate.weight"):
                tensor.copy_(torch.randn(tensor.shape, generator=draw))
    return model


def released_config(model: Model, hub: dict) -> dict:
    """The released config.json with the sizes of a small model."""
    ours = model.net.config
    sizes = {name: getattr(ours, name) for name in hub if name in LLADA2.covered.read and hasattr(ours, name)}
    sizes |= {"num_experts": ours.n_routed_experts, "num_shared_experts": ours.n_shared_experts}
    sizes |= {"rope_theta": ours.rope_parameters["rope_theta"], "rotary_dim": ours.head_dim // 2}
    return hub | sizes | {"pad_token_id": model.roles.eos}


def released_tensors(model: Model) -> dict[str, torch.Tensor]:
    """The tensors of a small model as the release names and joins them, written out by hand."""
    state = model.net.state_dict()
    tensors = {}
    for name, whole in state.items():
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            rows = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            tensors[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(rows)
            continue
        for part, tensor in stored_tensors({name: whole}).items():
            new = part.replace("model.embed_tokens", "model.word_embeddings")
            new = new.replace("self_attn.o_proj", "attention.dense")
            new = new.replace("self_attn.q_norm", "attention.query_layernorm")
            new = new.replace("self_attn.k_norm", "attention.key_layernorm")
            tensors[new.replace("e_score_correction_bias", "expert_bias")] = tensor
    return tensors


@pytest.fixture
def released(model, data_dir, tmp_path):
    def write(name: str = "llada2.0-mini", **changes):
        folder = tmp_path / name
        folder.mkdir()
        hub = read_json(data_dir / "hub" / "llada2.0-mini" / "config.json")
        (folder / "config.json").write_text(json.dumps(released_config(model, hub) | changes))
        model.tokenizer.save_pretrained(str(folder))
        save_file(released_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return write


# The releases' metadata


@MINIS
def test_every_released_tensor_has_a_place(data_dir, name):
    folder = data_dir / "hub" / name
    values = read_json(folder / "config.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the released config has no unknown field
        config = recognise(values, where=name).read_config(values, where=name)
    names = list(read_json(folder / "model.safetensors.index.json")["weight_map"])
    placed = []
    for stock in map(LLADA2.tensor_name, names):
        placed += [stock.replace("qkv", kind) for kind in "qkv"] if "qkv_proj" in stock else [stock]
    with torch.device("meta"):
        network = LLADA2.net_class(config)
    state = network.state_dict()
    expected = list(revert_weight_conversion(network, state))
    assert set(expected) == set(stored_tensors(state))
    assert len(names) == 14813
    assert sorted(placed) == sorted(expected)
    assert all(LLADA2.released_name(LLADA2.tensor_name(one)) == one for one in names)
    # The released total size is that of these shapes in bfloat16, 2.1's biases in float32: it pins them all at once.
    wide = 2 if name == "llada2.1-mini" else 0
    size = sum(
        (2 + wide * part.endswith("correction_bias")) * tensor.numel() for part, tensor in state.items()
    )
    assert read_json(folder / "model.safetensors.index.json")["metadata"]["total_size"] == size


@MINIS
def test_the_released_template_writes_tools_and_roles(data_dir, name):
    """The template on text: the vocabulary of the release is not at hand."""
    tokenizer = character_tokenizer(110)
    tokenizer.chat_template = read_json(data_dir / "hub" / name / "tokenizer_config.json")["chat_template"]

    def render(turns, **options):
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)

    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    text = render(turns)
    assert text == (
        "<role>SYSTEM</role>Be brief.\ndetailed thinking off<|role_end|>"
        "<role>HUMAN</role>2+2?<|role_end|><role>ASSISTANT</role>"
    )
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    call = {"function": {"name": "add", "arguments": {"a": 2}}}
    turns += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
    ]
    text = render(turns, tools=[tool])
    assert f"<tools>\n{json.dumps(tool)}\n</tools>" in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>' in text
    assert "<tool_response>\n4\n</tool_response>" in text


# Random checkpoints in the released layout


def test_logits_are_those_of_a_plain_implementation(released):
    folder = released()
    loaded = load(folder, causal_block=4)
    tensors, config = load_file(folder / "model.safetensors"), read_json(folder / "config.json")
    for row in ([7, 20, 33, 12, 40, 41, 9, 0, 0, 0, 0], [9, 40, 0, 0, 0], [50, 31]):
        number = torch.arange(len(row)) // 4
        seen = (number[None, :] <= number[:, None])[None, None]
        with torch.inference_mode():
            found = loaded.net(torch.tensor([row]), attention_mask=seen).logits[0]
        assert (found - plain_llada2(tensors, config, row, 4)).abs().max() <= 1e-5


def test_experts_are_chosen_by_group_and_bias(model, released):
    """The comparison above could not fail on routing if the groups or the biases never mattered."""
    folder = released()
    tensors, config = load_file(folder / "model.safetensors"), read_json(folder / "config.json")
    row = [7, 20, 33, 12, 40, 41, 9]
    right = plain_llada2(tensors, config, row, 4)
    open_groups = plain_llada2(tensors, config | {"topk_group": 4}, row, 4)
    unbiased = {k: torch.zeros_like(v) if k.endswith("expert_bias") else v for k, v in tensors.items()}
    assert (right - open_groups).abs().max() > 1e-3
    assert (right - plain_llada2(unbiased, config, row, 4)).abs().max() > 1e-3


def test_a_release_loads_decodes_saves_and_leaves_as_it_came(model, released, tmp_path):
    folder = released()
    loaded = load(folder, causal_block=4)
    assert (loaded.family.name, loaded.default_plan, loaded.card.causal_block) == ("llada2", "dynamic", 4)
    save(loaded, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.card.causal_block == 4
    for preset in LLADA2.decoding.presets:
        answers = [
            [(r.tokens, r.passes_decode) for r in one.generate(["hi", "a longer prompt"], preset, canvas=10)]
            for one in (model, loaded, again)
        ]
        assert answers[0] == answers[1] == answers[2]
    tensors = load_file(folder / "model.safetensors")
    export(loaded, tmp_path / "back")
    export(again, tmp_path / "made", like=folder)
    for back in (tmp_path / "back", tmp_path / "made"):
        written = load_file(back / "model.safetensors")
        assert written.keys() == tensors.keys()
        assert all(torch.equal(written[name], tensors[name]) for name in tensors)
        assert read_json(back / "config.json") == read_json(folder / "config.json")


def test_the_cache_of_finished_blocks_is_exact(model):
    """The engine keeps the keys of finished blocks; without a cache every pass reads the whole row."""
    from voidpad.decode.loop import decode

    plan = model.plan(canvas=20, threshold=0.2)
    for prompt in ("hi", "what is 2+2?"):
        ids = model.encode(prompt)
        *_, last = decode(model.denoiser(), [ids], model.roles, model.fit(ids, plan))
        [cached] = model.generate(prompt, plan)
        assert cached.ids == last.finished[0].ids


def test_routing_stays_in_float32(model):
    net = random_net(model.config, seed=1, dtype=torch.bfloat16)
    router = net.model.layers[1].mlp.gate
    assert router.e_score_correction_bias.dtype == torch.float32
    seen = router(torch.randn(3, model.config.hidden_size).float())
    assert seen[1].dtype == torch.float32


def test_the_usual_block_needs_no_word_and_21_gets_one(released):
    with warnings.catch_warnings():
        warnings.simplefilter("error", AssumedWarning)
        assert load(released()).card.causal_block == 32
    with pytest.warns(AssumedWarning, match="editing"):
        load(released("LLaDA2.1-mini"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("score_function", "softmax"),
        ("use_qk_norm", False),
        ("partial_rotary_factor", 1.0),
        ("rotary_dim", 12),
        ("use_bias", True),
        ("norm_head", True),
        ("using_split_qkv_in_self_attention", True),
        ("use_sliding_window", True),
    ],
)
def test_fields_that_change_the_function_are_refused(released, field, value):
    with pytest.raises(WeightsError, match=field):
        load(released(**{field: value}))


def test_a_joined_tensor_of_another_size_is_refused(released):
    folder = released()
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.attention.query_key_value.weight"
    save_file(tensors | {name: tensors[name][:-1].clone()}, folder / "model.safetensors")
    with pytest.raises(WeightsError):
        load(folder)
