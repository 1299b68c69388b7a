"""Checkpoints: what loads is exact, and what could load wrong is refused by name."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from originals import original_name, write_original
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import voidpad
from voidpad.errors import ConfigError, RoleError, WeightsError
from voidpad.models import DREAM, FAMILIES, LLADA, Card, load, merge, random_model, read_card, save
from voidpad.models.card import read_json
from voidpad.models.family import rename, translate
from voidpad.models.grow import with_void
from voidpad.models.weights import Header, check
from voidpad.roles import Roles

BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


@pytest.fixture(scope="module")
def models():
    return {name: random_model(name, kv_heads=2, seed=3) for name in FAMILIES}


@pytest.fixture
def llada(models, tmp_path):
    return write_original(models["llada"], tmp_path / "llada")


def logits(model, ids, **kwargs):
    with torch.inference_mode():
        return model.net(torch.tensor(ids), **kwargs).logits


ROWS = [[7, 20, 33, 12, 0, 0, 0, 0], [9, 40, 0, 0, 0, 0, 0, 0]]


# The releases


@pytest.mark.parametrize(("name", "count"), [("llada-8b-instruct", 291), ("dream-7b-instruct", 339)])
def test_every_released_tensor_has_its_place(data_dir, name, count):
    folder = data_dir / "hub" / name
    family, values = translate(read_json(folder / "config.json"), where=name)
    released = read_json(folder / "model.safetensors.index.json")["weight_map"]
    config = family.config(values)
    with torch.device("meta"):
        net = family.net_class(config)
    wanted = {tensor: tuple(value.shape) for tensor, value in net.state_dict().items()}
    assert {rename(tensor) for tensor in released} == set(wanted)
    assert len(released) == len(wanted) == count
    assert config.is_causal is False
    # The released total size is that of these shapes in bfloat16, which pins them all at once.
    total = read_json(folder / "model.safetensors.index.json")["metadata"]["total_size"]
    assert 2 * sum(torch.Size(shape).numel() for shape in wanted.values()) == total
    check({tensor: Header(wanted[rename(tensor)], "BF16") for tensor in released}, family, config, where=name)


def test_released_shapes(data_dir):
    family, values = translate(read_json(data_dir / "hub" / "llada-8b-instruct" / "config.json"), where="")
    config = family.config(values)
    assert (family, config.hidden_size, config.intermediate_size) == (LLADA, 4096, 12288)
    assert (config.num_key_value_heads, config.vocab_size, config.max_position_embeddings) == (
        32,
        126464,
        4096,
    )
    assert config.rope_parameters["rope_theta"] == 500000.0
    family, values = translate(read_json(data_dir / "hub" / "dream-7b-instruct" / "config.json"), where="")
    config = family.config(values)
    assert (family, config.num_key_value_heads, config.vocab_size) == (DREAM, 4, 152064)
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (1e-6, 1000000.0)


def plain_forward(tensors, config, ids):
    """The LLaDA block from its own tensor names, one head at a time: what the release computes."""
    width, heads = config["d_model"], config["n_heads"]
    size, group = width // heads, heads // config["n_kv_heads"]
    step = config["rope_theta"] ** -(torch.arange(0, size, 2) / size)
    angle = torch.outer(torch.arange(len(ids)).float(), step)
    cos, sin = torch.cat([angle.cos()] * 2, 1), torch.cat([angle.sin()] * 2, 1)

    def norm(x, name):
        scale = (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt()
        return x * scale * tensors[f"model.transformer.{name}.weight"]

    def turn(x):
        return x * cos + torch.cat([-x[:, size // 2 :], x[:, : size // 2]], 1) * sin

    x = tensors["model.transformer.wte.weight"][ids]
    for layer in range(config["n_layers"]):
        block = {
            name: tensors[f"model.transformer.blocks.{layer}.{name}.weight"].T
            for name in ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out")
        }
        y = norm(x, f"blocks.{layer}.attn_norm")
        q, k, v = (y @ block[name] for name in ("q_proj", "k_proj", "v_proj"))
        mixed = []
        for head in range(heads):
            mine = slice(head * size, (head + 1) * size)
            theirs = slice(head // group * size, (head // group + 1) * size)
            weight = (turn(q[:, mine]) @ turn(k[:, theirs]).T / size**0.5).softmax(1)
            mixed.append(weight @ v[:, theirs])
        x = x + torch.cat(mixed, 1) @ block["attn_out"]
        y = norm(x, f"blocks.{layer}.ff_norm")
        x = x + (torch.nn.functional.silu(y @ block["ff_proj"]) * (y @ block["up_proj"])) @ block["ff_out"]
    return norm(x, "ln_f") @ tensors["model.transformer.ff_out.weight"].T


def test_the_names_mean_what_the_release_means(llada):
    tensors = load_file(llada / "model.safetensors")
    wanted = plain_forward(tensors, read_json(llada / "config.json"), ROWS[0])
    assert (logits(load(llada), ROWS)[0] - wanted).abs().max() <= 5e-6


@BOTH
def test_eos_has_an_ordinary_embedding_row(models, tmp_path, family):
    """The releases pad with EOS; a padding row would get no gradient."""
    net = load(write_original(models[family], tmp_path / "released", pad_token_id=1)).net
    net(torch.tensor(ROWS)[:, :4] * 0 + 1).logits[..., 9].sum().backward()
    assert net.get_input_embeddings().weight.grad[1].abs().max() > 0


@BOTH
@pytest.mark.parametrize("shards", [1, 3])
def test_a_released_checkpoint_loads_exactly(models, tmp_path, family, shards):
    model = models[family]
    loaded = load(write_original(model, tmp_path / "released", shards=shards))
    assert (logits(loaded, ROWS) - logits(model, ROWS)).abs().max() == 0.0
    assert loaded.roles == model.roles
    assert loaded.family is FAMILIES[family]
    assert loaded.card == Card(family, model.roles)
    assert not loaded.net.training


def test_a_loaded_llada_is_saved_under_the_new_names(llada, tmp_path):
    loaded = load(llada)
    save(loaded, tmp_path / "ours")
    loaded.net.save_pretrained(str(tmp_path / "trainer"))
    for folder in ("ours", "trainer"):
        names = set(load_file(tmp_path / folder / "model.safetensors"))
        assert names == set(loaded.net.state_dict())


@BOTH
def test_attention_sees_both_ways(models, family):
    late = [row.copy() for row in ROWS]
    late[0][-1] = 50
    early = (logits(models[family], late) - logits(models[family], ROWS))[0, 0].abs().max()
    assert early > 1e-3


@BOTH
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 5e-6)])
def test_right_padding_changes_nothing(family, dtype, limit):
    model = random_model(family, kv_heads=2, dtype=dtype)
    lengths = [8, 3]
    inside = torch.tensor([[place < length for place in range(8)] for length in lengths])
    padded = logits(model, ROWS, attention_mask=inside.long())
    for row, length in enumerate(lengths):
        alone = logits(model, [ROWS[row][:length]])[0]
        assert (padded[row, :length] - alone).abs().max() <= limit


# Save and load


@BOTH
def test_save_and_load_round_trip(models, tmp_path, family):
    model = models[family]
    model.card = Card(
        family, model.roles, padding="void", recipe={"updates": 3}, calibration={"void": {"block": 16}}
    )
    save(model, tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert (logits(loaded, ROWS) - logits(model, ROWS)).abs().max() == 0.0
    assert (loaded.card, loaded.roles) == (model.card, model.roles)
    assert loaded.encode("hello 42!") == model.encode("hello 42!")
    assert loaded.plan("void", canvas=32).block == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]


def test_save_never_overwrites(models, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="there: already exists; choose another folder"):
        save(models["llada"], tmp_path / "there")
    (tmp_path / "empty").mkdir()
    save(models["llada"], tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").is_file()


def test_a_failed_save_leaves_nothing(tmp_path):
    model = random_model()
    model.card = Card(
        "llada", model.roles, recipe={"not JSON": object()}
    )  # fails after the weights are written
    with pytest.raises(TypeError):
        save(model, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_half_precision_on_disk_is_float32_on_a_cpu(models, tmp_path):
    half = random_model(seed=5)
    half.net.half()
    save(half, tmp_path / "half")
    loaded = load(tmp_path / "half")
    assert {tensor.dtype for tensor in loaded.net.state_dict().values()} == {torch.float32}
    assert {t.dtype for t in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float16}
    assert load(tmp_path / "half", dtype="bfloat16").net.dtype == torch.bfloat16


def test_card_version_and_damage(models, tmp_path):
    Card("llada", Roles(mask=0, eos=1)).write(tmp_path)
    assert read_card(tmp_path) == Card("llada", Roles(mask=0, eos=1))
    for content, message in [
        ('{"version": 2}', "card version is not 1"),
        ('{"version": 1}', "not a voidpad card"),
        (
            '{"version": 1, "family": "llada", "roles": {"mask": 0, "eos": 1}, "extra": 1}',
            "not a voidpad card",
        ),
        ('{"version": 1, "family": "gpt", "roles": {"mask": 0, "eos": 1}}', "family 'gpt' is unknown"),
        ("{", "damaged JSON"),
        ("[]", "expected a JSON object"),
    ]:
        (tmp_path / "voidpad.json").write_text(content)
        with pytest.raises(WeightsError, match=message):
            read_card(tmp_path)


# Refusals


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alibi", True),
        ("block_type", "sequential"),
        ("layer_norm_type", "default"),
        ("include_bias", True),
        ("include_qkv_bias", True),
        ("scale_logits", True),
        ("input_emb_norm", True),
        ("activation_type", "swiglu"),
        ("attention_layer_norm", True),
        ("rope", False),
        ("block_group_size", 2),
        ("clip_qkv", 8.0),
    ],
)
def test_llada_config_fields_we_do_not_cover(models, tmp_path, field, value):
    folder = write_original(models["llada"], tmp_path / "llada", **{field: value})
    with pytest.raises(WeightsError, match=f"config.json is not covered: {field}={value!r} \\(covered: "):
        load(folder)


@BOTH
def test_unknown_config_fields(models, tmp_path, family):
    folder = write_original(models[family], tmp_path / "odd", sparse_attention=True)
    with pytest.raises(WeightsError, match="sparse_attention=True is unknown"):
        load(folder)


def test_absent_config_fields(llada):
    config = read_json(llada / "config.json")
    for field, message in [("block_type", "block_type is missing"), ("d_model", "has no field 'd_model'")]:
        (llada / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != field}))
        with pytest.raises(WeightsError, match=message):
            load(llada)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_sliding_window", True),
        ("use_mrope", True),
        ("rope_scaling", {"type": "yarn"}),
        ("hidden_act", "gelu"),
    ],
)
def test_dream_config_fields_we_do_not_cover(models, tmp_path, field, value):
    folder = write_original(models["dream"], tmp_path / "dream", **{field: value})
    with pytest.raises(WeightsError, match=f"config.json is not covered: {field}="):
        load(folder)


def test_other_architectures_are_refused(llada):
    (llada / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(WeightsError, match="model_type 'llama' is not covered; use a LLaDA or Dream"):
        load(llada)


def test_a_model_with_an_adapter_inside_is_refused(llada):
    (llada / "adapter_config.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"holds a whole model and an adapter; move adapter_config.json"):
        load(llada)


def test_card_and_config_must_agree(models, tmp_path):
    save(models["llada"], tmp_path / "saved")
    Card("dream", models["llada"].roles).write(tmp_path / "saved")
    with pytest.raises(
        WeightsError, match=r"model_type 'llama' in config.json, but the card's family 'dream'"
    ):
        load(tmp_path / "saved")


def test_missing_surplus_and_misshapen_tensors(llada):
    path = llada / "model.safetensors"
    whole = load_file(path)
    norm, head = original_name("model.norm.weight"), original_name("lm_head.weight")
    save_file({k: v for k, v in whole.items() if k != norm}, path)
    with pytest.raises(WeightsError, match=r"1 missing tensor\(s\): model.norm.weight"):
        load(llada)
    save_file(whole | {"model.transformer.wpe.weight": torch.zeros(2)}, path)
    with pytest.raises(WeightsError, match=r"1 surplus tensor\(s\): model.transformer.wpe.weight"):
        load(llada)
    save_file(whole | {head: torch.zeros(63, 32)}, path)
    with pytest.raises(WeightsError, match=r"lm_head.weight is \[63, 32\], the config asks for \[64, 32\]"):
        load(llada)


def test_an_index_must_tell_the_truth(models, tmp_path):
    folder = write_original(models["dream"], tmp_path / "sharded", shards=2)
    index = read_json(folder / "model.safetensors.index.json")
    index["weight_map"]["model.ghost.weight"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"index.json: 1 missing tensor\(s\): model.ghost.weight"):
        load(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002.safetensors: no such file"):
        load(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_refused(llada, name):
    (llada / "model.safetensors").rename(llada / name)
    with pytest.raises(WeightsError, match=f"{name}: pickle weights can run code; convert"):
        load(llada)


def test_damaged_and_missing_files(llada, tmp_path):
    path = llada / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(WeightsError, match=r"model.safetensors: damaged safetensors file"):
        load(llada)
    path.write_bytes(b"not a tensor file")
    with pytest.raises(WeightsError, match="damaged safetensors file"):
        load(llada)
    path.unlink()
    with pytest.raises(WeightsError, match=r"model.safetensors: no such file; voidpad reads safetensors"):
        load(llada)
    path.write_bytes(whole)
    (llada / "tokenizer.json").write_text("{")
    with pytest.raises(WeightsError, match="damaged tokenizer files"):
        load(llada)
    (llada / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match=r"no tokenizer.json, nor vocab.json with merges.txt"):
        load(llada)
    (llada / "config.json").write_text("{'d_model'")
    with pytest.raises(WeightsError, match=r"config.json: damaged JSON"):
        load(llada)
    (llada / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"config.json: no such file"):
        load(llada)


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    with pytest.raises(WeightsError, match=r"nowhere: no such folder; use tiny-instruct, .* or a hub id"):
        load("nowhere")
    with pytest.raises(WeightsError, match="no such folder; use tiny-instruct"):
        load(tmp_path / "gone")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="is a file; give the folder"):
        load(tmp_path / "model.safetensors")


def test_a_hub_id_is_its_snapshot(models, tmp_path, monkeypatch):
    import huggingface_hub.constants

    repo = tmp_path / "models--someone--something"
    write_original(models["dream"], repo / "snapshots" / "0123abc")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    loaded = load("someone/something")
    assert loaded.name == "someone/something"
    assert (logits(loaded, ROWS) - logits(models["dream"], ROWS)).abs().max() == 0.0


def test_an_unreachable_hub_is_one_line(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        WeightsError, match="nobody/nothing: no such folder, and the hub gave nothing"
    ) as caught:
        load("nobody/nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"dtype": "float16"}, "dtype 'float16' is unknown; use auto, float32 or bfloat16"),
        ({"device": "tpu9"}, "device 'tpu9' is unknown"),
        ({"quantize": "2bit"}, "quantize '2bit' is unknown; use 8bit or 4bit"),
    ],
)
def test_places_we_do_not_know(place, message):
    with pytest.raises(ConfigError, match=message):
        load("nowhere", **place)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_cuda_here():
    with pytest.raises(ConfigError, match="device 'cuda': this machine has no CUDA device; use cpu"):
        load("nowhere", device="cuda")


def test_quantize_without_its_package(monkeypatch):
    monkeypatch.setattr("voidpad.models.place.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="quantize='4bit' needs bitsandbytes; pip install bitsandbytes"):
        load("nowhere", quantize="4bit")
    with pytest.raises(ConfigError, match="device_map='auto' needs accelerate; pip install accelerate"):
        load("nowhere", device_map="auto")


def test_device_map_loads_the_same(models, tmp_path):
    pytest.importorskip("accelerate")
    save(models["llada"], tmp_path / "saved")
    loaded = load(tmp_path / "saved", device_map={"": "cpu"}, dtype="float32")
    assert (logits(loaded, ROWS) - logits(models["llada"], ROWS)).abs().max() == 0.0


# Roles, prompts, text


def test_given_ids_override_the_checkpoint(llada):
    loaded = load(llada, roles={"void": 40, "rainbow": (40, 41)})
    assert (loaded.roles.void, loaded.roles.rainbow, loaded.roles.mask) == (40, (40, 41), 0)
    with pytest.raises(RoleError, match="role id 99 is outside the embedding"):
        load(llada, roles={"void": 99})
    with pytest.raises(RoleError, match="role 'pad' is unknown"):
        load(llada, roles={"pad": 9})


def test_dream_takes_the_authors_void(data_dir, models, tmp_path):
    folder = write_original(
        random_model("dream", vocab=152064, hidden=4, heads=1, layers=1), tmp_path / "dream"
    )
    for path in folder.glob("*tokenizer*"):
        path.unlink()
    (folder / "chat_template.jinja").unlink()
    for path in (data_dir / "hub" / "dream-7b-instruct").iterdir():
        if path.name.split(".")[0] in (
            "vocab",
            "merges",
            "tokenizer_config",
            "special_tokens_map",
            "added_tokens",
        ):
            shutil.copy(path, folder)
    config = read_json(folder / "config.json") | {"mask_token_id": 151666, "eos_token_id": 151643}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
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
        ("", {}, "prompt is empty"),
        (" \n", {}, "prompt is empty"),
        ("", {"raw": True}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ("say <|mask|> now", {"raw": True}, r"prompt token 4 is the mask \(0\); remove it"),
        (
            "x" * 512,
            {"raw": True},
            "prompt of 512 tokens and canvas 1 make 513, over the model's context of 512",
        ),
        ([{"role": "user"}], {}, r"messages\[0\]: .* needs the text fields 'role' and 'content'"),
        ([{"role": "assistant", "content": "a"}], {}, r"messages\[0\] is an assistant turn"),
        (
            [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
            {"system": "c"},
            "given twice",
        ),
        ([{"role": "user", "content": "b"}], {"raw": True}, "raw=True takes plain text"),
        ("hi", {"raw": True, "system": "c"}, "raw=True takes plain text"),
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
    state = torch.get_rng_state()
    sizes = {
        "vocab": 120,
        "hidden": 24,
        "layers": 3,
        "heads": 6,
        "kv_heads": 3,
        "intermediate": 40,
        "context": 96,
    }
    a, b, c = (random_model("dream", **sizes, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert (logits(a, ROWS) == logits(b, ROWS)).all()
    assert (logits(a, ROWS) != logits(c, ROWS)).any()
    config = a.net.config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers, a.context) == (120, 24, 3, 96)
    assert (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size) == (6, 3, 40)
    assert logits(a, ROWS).shape == (2, 8, 120)
    text = "The answer: 2 + 2 = 4!\n#### 4"
    assert a.text(a.encode(text, raw=True)) == text


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"vocab": 11}, "vocab 11 is too small; use at least 12"),
        ({"heads": 5}, "heads 5 must divide hidden 32"),
        ({"family": "gpt"}, "family 'gpt' is unknown; use one of llada, dream"),
    ],
)
def test_random_models_that_cannot_be(sizes, message):
    with pytest.raises(ConfigError, match=message):
        random_model(**sizes)


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
        raw = logits(model, step.before.canvas.ids.tolist())[0]
        place = step.where[0].nonzero()[:, 0] - shift
        assert (step.logits - raw[place]).abs().max() <= 1e-6


def test_a_canvas_beyond_the_context_is_refused(models):
    with pytest.raises(
        ConfigError, match="prompt of 20 tokens and canvas 512 make 532, over the model's context"
    ):
        models["llada"].generate("hi", "void")


def test_rules_that_grow_stay_inside_the_context():
    model = random_model(context=64)
    (result,) = model.generate("hi", "void-expansion", canvas=16, block=16, tau_nonvoid=0.0)
    assert (result.canvas, result.passes_probe) == (32, 2)  # 20 prompt tokens leave 44: two whole blocks
    assert model.fit([20] * 10, model.plan("daedal", canvas=16, block=16)).length.limit == 48


def test_a_ready_plan_takes_no_fields(models):
    ready = models["llada"].plan("original", canvas=16, block=8)
    by_plan, by_name = (
        models["llada"].generate("hi", ready),
        models["llada"].generate("hi", "eos", canvas=16, block=8),
    )
    assert by_plan[0].tokens == by_name[0].tokens
    with pytest.raises(ConfigError, match="a ready plan takes no fields, got block"):
        models["llada"].generate("hi", ready, block=4)


@BOTH
def test_void_for_a_vocabulary_without_room(family, tmp_path):
    model = random_model(family, vocab=64)
    core = Tokenizer(WordLevel({"<|mask|>": 0, "<|endoftext|>": 1} | {f"w{n}": n for n in range(2, 64)}))
    model.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|endoftext|>", mask_token="<|mask|>"
    )
    model.roles = Roles(mask=0, eos=1)
    model.card = Card(family, model.roles)
    before, rows = logits(model, ROWS), model.net.get_output_embeddings().weight.detach().clone()
    grown = with_void(model)
    assert (grown.roles.void, grown.roles.rainbow) == (64, tuple(range(64, 71)))
    assert (logits(grown, ROWS)[..., :64] - before).abs().max() == 0.0
    for matrix in (grown.net.get_input_embeddings().weight, grown.net.get_output_embeddings().weight):
        assert (matrix[64:] - matrix[:64].mean(0)).abs().max() <= 1e-7
    assert (grown.net.get_output_embeddings().weight[:64] == rows).all()
    assert with_void(grown) is grown
    save(grown, tmp_path / "grown")
    again = load(tmp_path / "grown")
    assert again.roles == grown.roles
    assert (logits(again, ROWS) - logits(grown, ROWS)).abs().max() == 0.0


# The package


def test_public_names():
    assert voidpad.__all__ == ["Model", "Result", "Roles", "load", "merge", "plan", "random_model", "save"]
    assert dir(voidpad) == voidpad.__all__
    assert (voidpad.load, voidpad.merge, voidpad.Roles) == (load, merge, Roles)
    with pytest.raises(AttributeError, match="no attribute 'get_model'"):
        voidpad.get_model  # noqa: B018


def test_importing_voidpad_imports_no_torch():
    code = "import sys, voidpad; sys.exit(bool({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", ["tiny-instruct", "tiny-eos", "tiny-rainbow", "tiny-void"])
def test_built_in_names(name, tmp_path, monkeypatch):
    monkeypatch.setattr("voidpad.models.locate.ASSETS", tmp_path)
    with pytest.raises(WeightsError, match=f"{name}: the built-in weights are not in this installation"):
        load(name)
