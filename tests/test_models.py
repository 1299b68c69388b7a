"""Checkpoints: what loads is exact, and what could load wrong is refused by name."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from originals import logits, original_name, write_original
from voidpad.errors import ConfigError, ModelNotFoundError, WeightsError
from voidpad.models import Card, load, random_model, save

BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


@pytest.fixture(scope="module")
def models():
    return {name: random_model(name, kv_heads=2, seed=3) for name in ("llada", "dream")}


@pytest.fixture
def llada(models, tmp_path):
    return write_original(models["llada"], tmp_path / "llada")


# Save and load


@BOTH
def test_save_and_load_round_trip(models, tmp_path, family):
    model = models[family]
    model.card = Card(
        family, model.roles, padding="void", recipe={"updates": 3}, calibration={"void": {"block": 16}}
    )
    save(model, tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert (logits(loaded) - logits(model)).abs().max() == 0.0
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


def test_missing_surplus_and_misshapen_tensors(llada):
    path = llada / "model.safetensors"
    whole = load_file(path)
    norm, head = original_name("model.norm.weight"), original_name("lm_head.weight")
    odd, odd_head = {"model.transformer.wpe.weight": torch.zeros(2)}, {head: torch.zeros(63, 32)}
    for tensors, message in [
        ({k: v for k, v in whole.items() if k != norm}, "missing: model.norm.weight"),
        (whole | odd, "surplus: model.transformer.wpe.weight"),
        (whole | odd_head, r"misshapen: lm_head.weight \[63, 32\] for \[64, 32\]"),
    ]:
        save_file(tensors, path)
        with pytest.raises(WeightsError, match=message):
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
    assert (logits(loaded) - logits(models["dream"])).abs().max() == 0.0


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
    assert (logits(loaded) - logits(models[family])).abs().max() <= 1e-3
    coarse = load(tmp_path / "saved", dtype="bfloat16", **place)
    assert coarse.net.dtype == torch.bfloat16
    (result,) = coarse.generate("hi", "void", canvas=16, block=8)
    assert result.canvas == 16


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
