"""Checkpoints: what loads is exact, and what could load wrong is refused by name."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from originals import original_name, write_original
from plain_forward import plain_forward
from voidpad.errors import AssumedWarning, ConfigError, ModelNotFoundError, WeightsError
from voidpad.files import read_json
from voidpad.models import DREAM, FAMILIES, Card, load, random_model, save
from voidpad.models.families import recognise
from voidpad.models.fresh import random_net

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


@pytest.mark.parametrize(
    ("name", "count"), [("llada-8b-instruct", 291), ("dream-7b-instruct", 339), ("sdar-8b-chat", 399)]
)
def test_every_released_tensor_has_its_place(data_dir, name, count):
    folder = data_dir / "hub" / name
    values = read_json(folder / "config.json")
    family = recognise(values, where=name)
    released = read_json(folder / "model.safetensors.index.json")["weight_map"]
    config = family.read_config(values, where=name)
    with torch.device("meta"):
        net = family.net_class(config)
    wanted = {tensor: tuple(value.shape) for tensor, value in net.state_dict().items()}
    assert {family.tensor_name(tensor) for tensor in released} == set(wanted)
    assert len(released) == len(wanted) == count
    assert config.is_causal is False
    # The released total size is that of these shapes in bfloat16, which pins them all at once.
    total = read_json(folder / "model.safetensors.index.json")["metadata"]["total_size"]
    assert 2 * sum(torch.Size(shape).numel() for shape in wanted.values()) == total


def plain_llada(tensors, config, ids):
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
    wanted = plain_llada(tensors, read_json(llada / "config.json"), ROWS[0])
    assert (logits(load(llada), ROWS)[0] - wanted).abs().max() <= 5e-6


def test_dream_computes_what_the_release_computes(models, tmp_path):
    folder = write_original(models["dream"], tmp_path / "dream")
    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    for (
        name,
        tensor,
    ) in tensors.items():  # fresh norms are 1 and fresh biases 0, which would hide where they are
        if "norm" in name or "bias" in name:
            tensors[name] = 0.5 + torch.rand(tensor.shape, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    wanted = plain_forward(tensors, read_json(folder / "config.json"), ROWS[0])
    assert (logits(load(folder), ROWS)[0] - wanted).abs().max() <= 5e-6


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
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in (tmp_path / "saved").iterdir())


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


# Refusals


@pytest.mark.parametrize(
    ("family", "field", "value"),
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
    ],
)
def test_config_fields_that_change_the_function_are_refused(models, tmp_path, family, field, value):
    folder = write_original(models[family], tmp_path / "odd", **{field: value})
    with pytest.raises(WeightsError, match=field):
        load(folder)


@BOTH
def test_unknown_config_fields(models, tmp_path, family):
    """Fields that change the function are refused by name; one warning lists the unknown ones."""
    folder = write_original(models[family], tmp_path / "odd", my_trainer=True, other_field=[1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(folder)
    [warning] = [one for one in caught if issubclass(one.category, AssumedWarning)]
    assert "my_trainer" in str(warning.message)
    assert "other_field" in str(warning.message)
    assert torch.equal(logits(model, ROWS), logits(models[family], ROWS))
    folder = write_original(
        models[family], tmp_path / "refused", my_trainer=True, final_logit_softcapping=30.0
    )
    with pytest.raises(WeightsError, match="final_logit_softcapping="):
        load(folder)


@BOTH
def test_a_field_that_the_authors_class_writes_is_silent(models, tmp_path, family):
    folder = write_original(models[family], tmp_path / "saved", train_max_sequence_length=1024)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AssumedWarning)
        assert torch.equal(logits(load(folder), ROWS), logits(models[family], ROWS))


def test_absent_config_fields(llada):
    config = read_json(llada / "config.json")
    for field in ("block_type", "d_model"):
        (llada / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != field}))
        with pytest.raises(WeightsError, match=field):
            load(llada)


def test_missing_surplus_misshapen_and_broken_tensors(llada):
    path = llada / "model.safetensors"
    whole = load_file(path)
    norm, head = original_name("model.norm.weight"), original_name("lm_head.weight")
    for tensors, message in [
        ({k: v for k, v in whole.items() if k != norm}, r"1 missing tensor\(s\): model.norm.weight"),
        (
            whole | {"model.transformer.wpe.weight": torch.zeros(2)},
            r"surplus .*: model.transformer.wpe.weight",
        ),
        (whole | {head: torch.zeros(63, 32)}, r"lm_head.weight \[63, 32\] instead of \[64, 32\]"),
        (whole | {norm: torch.full((32,), torch.nan)}, r"model.norm.weight holds NaN"),
    ]:
        save_file(tensors, path)
        with pytest.raises(WeightsError, match=message):
            load(llada)
    path.write_bytes(b"no tensors")
    with pytest.raises(WeightsError, match="damaged safetensors file"):
        load(llada)
    path.rename(llada / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="no pickles"):
        load(llada)


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "model.safetensors").write_bytes(b"")
    for name in ("nowhere", tmp_path / "gone", tmp_path / "model.safetensors", "nobody/nothing"):
        with pytest.raises(ModelNotFoundError, match=str(name)) as caught:
            load(name)
        assert "\n" not in str(caught.value)


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


def test_quantize_without_its_package(monkeypatch):
    monkeypatch.setattr("voidpad.models.device.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="bitsandbytes"):
        load("nowhere", quantize="4bit")


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("place", [{"device": "cuda"}, {"device": "spread"}])
def test_a_gpu_computes_the_same(models, tmp_path, family, place):
    save(models[family], tmp_path / "saved")
    loaded = load(tmp_path / "saved", dtype="float32", **place)
    assert loaded.device.type == "cuda"
    with torch.inference_mode():
        found = loaded.net(torch.tensor(ROWS, device="cuda")).logits.cpu()
    assert (found - logits(models[family], ROWS)).abs().max() <= 1e-3
    coarse = load(tmp_path / "saved", dtype="bfloat16", **place)
    assert coarse.net.dtype == torch.bfloat16
    (result,) = coarse.generate("hi", "void", canvas=16, block=8)
    assert result.canvas == 16


# More checkpoints of the two families (spec/families.md)


def test_dream_fields_that_nothing_reads_may_be_absent(models, tmp_path):
    """Dream-Coder and DiffuCoder grew from a config without use_mrope."""
    folder = write_original(models["dream"], tmp_path / "coder")
    config = read_json(folder / "config.json")
    kept = {k: v for k, v in config.items() if k not in ("use_mrope", "use_sliding_window", "hidden_act")}
    (folder / "config.json").write_text(json.dumps(kept))
    assert torch.equal(logits(load(folder), ROWS), logits(models["dream"], ROWS))
    (folder / "config.json").write_text(json.dumps({k: v for k, v in kept.items() if k != "rope_theta"}))
    with pytest.raises(WeightsError, match="rope_theta"):
        load(folder)


def open_dcoder(tmp_path):
    """A tied Qwen2 whose config.json does not say that it is a masked diffusion model."""
    model = random_model("dream")
    values = model.net.config.to_dict() | {"tie_word_embeddings": True}
    model.net = random_net(DREAM.config(values), seed=1)
    folder = write_original(
        model, tmp_path / "dcoder", model_type="qwen2", architectures=["Qwen2ForCausalLM"]
    )
    config = read_json(folder / "config.json")
    assert config["tie_word_embeddings"]
    for name in ("mask_token_id", "use_mrope"):
        del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    return model, folder


def test_a_plain_qwen2_must_be_named_by_the_user(tmp_path):
    model, folder = open_dcoder(tmp_path)
    with pytest.raises(WeightsError, match=r"'qwen2' is not covered.* name its family \(--family dream\)"):
        load(folder)
    loaded = load(folder, family="dream", roles={"mask": 40})
    assert (loaded.family, loaded.roles.mask) == (DREAM, 40)
    assert torch.equal(logits(loaded, ROWS), logits(model, ROWS))
    save(loaded, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert (again.family, again.roles.mask) == (DREAM, 40)
    assert torch.equal(logits(again, ROWS), logits(model, ROWS))
    for place, family in ((folder, "gpt"), (folder, "llada"), (tmp_path / "saved", "llada")):
        with pytest.raises((ConfigError, WeightsError), match=f"'{family}'"):
            load(place, family=family)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "dream", "num_experts": 64}, "with experts"),
        ({"model_type": "wedlm"}, "wedlm"),
        ({"model_type": "llama"}, "llama"),
    ],
)
def test_what_is_not_covered_is_named_in_one_line(config, name):
    with pytest.raises(WeightsError, match=f"folder: .*{name}.* is not covered") as caught:
        recognise(config, where="folder")
    assert "\n" not in str(caught.value)


def test_tokens_of_another_loop_are_never_chosen(models, tmp_path):
    save(models["dream"], tmp_path / "model")
    plain = load(tmp_path / "model")
    answers = plain.generate(["hi", "2+2?", "why"], "original", canvas=16, block=8)
    token = answers[0].tokens[0]
    banned = load(tmp_path / "model", roles={"never": (token,)})
    for answer in banned.generate(["hi", "2+2?", "why"], "original", canvas=16, block=8):
        assert token not in answer.ids


@pytest.mark.parametrize(
    ("padding", "plan"), [("void", "void"), ("rainbow", "original"), ("eos", "original"), (None, "original")]
)
def test_the_default_plan_follows_the_padding(padding, plan):
    model = random_model()
    model.card = Card("llada", model.roles, padding=padding)
    assert model.default_plan == plan


def test_the_table_of_the_docs_is_the_table_of_families():
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    table = page.split("| family | checkpoints | class |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    assert {row[0].strip("| ") for row in rows} == FAMILIES.keys()
    for name, _, kind, shift, *_ in rows:
        family = FAMILIES[name.strip("| ")]
        assert family.net_class.__name__ == f"{kind.split(',')[0]}ForCausalLM"
        assert family.shift == int(shift)
