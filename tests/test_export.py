"""`voidpad export`: what was released comes back byte for byte, and what was trained can be read by other engines."""

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from originals import adapted, logits, stored, write_original
from voidpad.commands.cli import app
from voidpad.errors import ConfigError, WeightsError
from voidpad.files import read_json
from voidpad.models import character_tokenizer, export, load, merge, random_model, save
from voidpad.models.text import read_tokenizer

EVERY = pytest.mark.parametrize("family", ["llada", "dream", "llada_moe"])


def run(*words, command="export"):
    ran = CliRunner().invoke(app, [command, *map(str, words)])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.output


def same_bytes(one, other):
    """Equal names, dtypes and bytes."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor.view(torch.uint8), other[name].view(torch.uint8)), name


@pytest.fixture(scope="module")
def models():
    return {name: random_model(name, kv_heads=2, seed=3) for name in ("llada", "dream", "llada_moe")}


def recast(folder, dtypes):
    """Store the tensors in these dtypes, in turn."""
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        turns = {name: dtypes[turn % len(dtypes)] for turn, name in enumerate(sorted(tensors))}
        save_file({name: tensor.to(turns[name]) for name, tensor in tensors.items()}, path)
    return folder


# The round trip


@EVERY
@pytest.mark.parametrize(
    "dtypes",
    [(torch.bfloat16,), (torch.bfloat16, torch.bfloat16, torch.float32)],
    ids=["bfloat16", "mixed"],
)
def test_what_was_released_comes_back(models, tmp_path, family, dtypes):
    released = write_original(models[family], tmp_path / "released", shards=2, torch_dtype="bfloat16")
    (released / "generation_config.json").write_text('{"steps": 512, "eps": 0.001}')
    (released / "modeling_x.py").write_text("raise SystemExit")
    recast(released, dtypes)
    run(released, "--out", tmp_path / "out")
    same_bytes(stored(tmp_path / "out"), stored(released))
    for name in ("config.json", "generation_config.json"):
        assert read_json(tmp_path / "out" / name) == read_json(released / name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (released / name).read_bytes()
    assert not list((tmp_path / "out").glob("*.py"))
    again, first = load(tmp_path / "out"), load(released)
    assert torch.equal(logits(again), logits(first))
    assert (again.roles, again.family, again.default_plan) == (first.roles, first.family, first.default_plan)


# Shards and dtypes


@EVERY
def test_shards_and_their_index(models, tmp_path, family):
    model = load(write_original(models[family], tmp_path / "released"))
    export(model, tmp_path / "out", max_shard_size=20_000)
    index = read_json(tmp_path / "out" / "model.safetensors.index.json")
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert all(re.fullmatch(rf"model-\d{{5}}-of-{len(files):05d}\.safetensors", name) for name in files)
    tensors = stored(tmp_path / "out")
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(4 * tensor.numel() for tensor in tensors.values())
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))
    export(model, tmp_path / "half", dtype="bfloat16")
    assert {tensor.dtype for tensor in stored(tmp_path / "half").values()} == {torch.bfloat16}
    assert read_json(tmp_path / "half" / "config.json")["torch_dtype"] == "bfloat16"


# Trained models


def tuned(model, folder, padding):
    """An adapter of this base, its VOID row included."""
    void = model.roles.void
    rows = {"embed_tokens": [void], "lm_head": [void]}
    model = adapted(model, trainable_token_indices=rows)
    card = replace(model.card, padding=padding, calibration={"void": {"canvas": 32}})
    save(replace(model, card=card), folder)
    return folder


@EVERY
def test_an_adapter_is_merged_into_the_released_names(models, tmp_path, family):
    released = write_original(models[family], tmp_path / "released")
    adapter = tuned(load(released), tmp_path / "adapter", "void")
    run(released, "--adapter", adapter, "--out", tmp_path / "out")
    wanted = merge(load(released, adapter))
    exported = load(tmp_path / "out")
    assert torch.equal(logits(exported), logits(wanted))
    assert (exported.default_plan, exported.plan("void").length.canvas) == ("void", 32)
    before, after = stored(released), stored(tmp_path / "out")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(moved) == 2 * 2 + 2  # two projections of two layers, embedding and head
    assert read_json(tmp_path / "out" / "config.json") == read_json(released / "config.json")


@pytest.mark.parametrize("padding", ["rainbow", "eos"])
def test_a_new_void_token_is_in_the_tokenizer(tmp_path, padding):
    """The vocabulary of the release has no VOID; the network has a spare row for it, and no row is added."""
    model = random_model("dream", vocab=64)
    bare = character_tokenizer(64)
    table = json.loads(bare.backend_tokenizer.to_str())
    names = {"<|void|>", *(f"<|rainbow_{n}|>" for n in range(1, 7))}
    kept = [name for name in sorted(bare.get_vocab(), key=bare.get_vocab().get) if name not in names]
    table["model"]["vocab"] = {name: place for place, name in enumerate(kept)}
    table["added_tokens"] = [
        entry | {"id": kept.index(entry["content"])}
        for entry in table["added_tokens"]
        if entry["content"] not in names
    ]
    released = write_original(model, tmp_path / "released", mask_token_id=0, eos_token_id=1)
    (released / "tokenizer.json").write_text(json.dumps(table))
    config = read_json(released / "tokenizer_config.json")
    (released / "tokenizer_config.json").write_text(json.dumps(config | {"added_tokens_decoder": {}}))
    loaded = load(released)
    assert loaded.roles.void == len(kept) == 57
    adapter = tuned(loaded, tmp_path / "adapter", padding)
    run(released, "--adapter", adapter, "--out", tmp_path / "out")
    again = read_tokenizer(tmp_path / "out")
    if padding == "rainbow":
        assert len(again) == 57 + 7
        assert again.encode("<|void|>", add_special_tokens=False) == [57]
    else:
        assert (tmp_path / "out" / "tokenizer.json").read_text() == json.dumps(table)
    assert read_json(tmp_path / "out" / "config.json")["vocab_size"] == 64
    assert load(tmp_path / "out").roles == load(released, adapter).roles


def test_a_release_that_does_not_fit(models, tmp_path):
    save(models["llada"], tmp_path / "saved")
    wide = write_original(random_model("llada", kv_heads=2, intermediate=96), tmp_path / "wide")
    with pytest.raises(WeightsError, match="intermediate_size=96"):
        run(tmp_path / "saved", "--like", wide, "--out", tmp_path / "out")
    other = write_original(models["dream"], tmp_path / "other")
    with pytest.raises(ConfigError, match="no released llada checkpoint"):
        run(tmp_path / "saved", "--like", other, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Refusals


def test_nothing_is_overwritten_and_nothing_is_loaded_first(models, tmp_path, monkeypatch):
    save(models["llada"], tmp_path / "saved")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    monkeypatch.setattr("voidpad.commands.export.open_model", None)
    with pytest.raises(ConfigError, match="already exists"):
        run(tmp_path / "saved", "--out", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes"]


def test_what_cannot_be_exported(models, tmp_path):
    save(models["llada"], tmp_path / "saved")
    adapter = tuned(load(tmp_path / "saved"), tmp_path / "adapter", "void")
    with pytest.raises(ConfigError, match="merge it first"):
        export(load(tmp_path / "saved", adapter), tmp_path / "out")
    for model in (models["llada"], load(tmp_path / "saved")):
        with pytest.raises(ConfigError, match="is no released llada checkpoint; name one"):
            export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    run(tmp_path / "saved", "--adapter", adapter, "--out", tmp_path / "whole", command="merge")
    assert torch.equal(logits(load(tmp_path / "whole")), logits(merge(load(tmp_path / "saved", adapter))))


def test_experts_that_voidpad_saved_keep_their_dtype(tmp_path):
    """They are saved fused and exported apart."""
    release = tmp_path / "release"
    write_original(random_model("llada_moe"), release)
    save(load(release), tmp_path / "saved")
    path = tmp_path / "saved" / "model.safetensors"
    mixed = {name: t if "gate.weight" in name else t.bfloat16() for name, t in load_file(path).items()}
    save_file(mixed, path, metadata={"format": "pt"})
    export(load(tmp_path / "saved"), tmp_path / "out", like=release)
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        assert tensor.dtype == (torch.float32 if "gate.weight" in name else torch.bfloat16), name
