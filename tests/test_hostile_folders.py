"""Damaged and hostile model folders: one clear line, in bounded time, before memory is taken."""

import contextlib
import json
import os
import random
import shutil
import time

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from fuzzing import SECONDS, mutated_json, mutated_tensors, reads_or_says_why
from originals import write_original
from voidpad.errors import VoidpadError
from voidpad.models import load, random_model, save
from voidpad.models.card import read_json


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder of each kind: released LLaDA, Dream (sharded) and LLaDA-MoE, two saved by voidpad, and an adapter."""
    root = tmp_path_factory.mktemp("folders")
    write_original(random_model("llada"), root / "llada")
    write_original(random_model("dream"), root / "dream", shards=2)
    write_original(random_model("llada_moe"), root / "experts")
    save(random_model("llada_moe"), root / "saved experts")
    save(random_model("llada"), root / "saved")
    model = random_model("llada")
    model.net = get_peft_model(model.net, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    model.net.peft_config["default"].base_model_name_or_path = str(root / "saved")
    save(model, root / "adapter")
    return root


@pytest.fixture
def folder(folders, tmp_path):
    """A fresh copy of a kind."""

    def copy(kind):
        return shutil.copytree(folders / kind, tmp_path / kind)

    return copy


def change(path, **values):
    path.write_text(json.dumps(read_json(path) | values))


def refused(folder, *mentions, prompt=None):
    """One line that names what is wrong."""

    def use():
        model = load(folder)
        if prompt is not None:
            model.encode(prompt)

    begun = time.monotonic()
    with pytest.raises(VoidpadError) as caught:
        use()
    assert time.monotonic() - begun < SECONDS
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    for mention in mentions:
        assert mention in message


# Sizes


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("llada", "n_layers", 10**6),
        ("llada", "d_model", 10**9),
        ("llada", "n_heads", 0),
        ("llada", "n_heads", 3),
        ("llada", "mlp_hidden_size", -4),
        ("llada", "embedding_size", "64"),
        ("llada", "max_sequence_length", 1e30),
        ("llada", "rms_norm_eps", float("nan")),
        ("llada", "rope_theta", "x"),
        ("dream", "num_hidden_layers", 10**6),
        ("dream", "num_hidden_layers", True),
        ("dream", "vocab_size", 10**12),
        ("dream", "num_key_value_heads", 3),
        ("dream", "rope_theta", float("inf")),
        ("experts", "num_experts", 10**9),
        ("experts", "num_experts", 99_999),
        ("experts", "num_experts", None),
        ("experts", "num_experts_per_tok", 5),
        ("experts", "expert_intermediate_size", [64]),
        ("experts", "moe_layer_freq", "1" * 100_000),
        ("experts", "num_key_value_heads", -4),
        ("saved experts", "num_experts_per_tok", 5),
        ("saved experts", "moe_intermediate_size", 10**15),
        ("saved experts", "decoder_sparse_step", 0),
        ("saved experts", "num_hidden_layers", 10**6),
        ("saved", "num_hidden_layers", 10**6),
        ("saved", "hidden_size", None),
        ("saved", "intermediate_size", 10**15),
        ("saved", "max_position_embeddings", -1),
    ],
)
def test_absurd_sizes(folder, kind, field, value):
    path = folder(kind)
    change(path / "config.json", **{field: value})
    refused(path, "config.json")


def test_sizes_that_the_files_do_not_have(folder):
    path = folder("dream")
    change(path / "config.json", num_hidden_layers=900)
    refused(path, "asks for 900 layers, but the files hold")
    change(path / "config.json", num_hidden_layers=3)
    refused(path, "missing tensor(s)")


@pytest.mark.parametrize(
    ("change_to", "mention"),
    [
        ({"calibration": {"void": {"canvas": 10**7}}}, "canvas=10000000 is above"),
        ({"calibration": {"void": {"canvas": [1]}}}, "is not a plain value"),
        ({"calibration": {"void": 3}}, "must be a JSON object"),
        ({"calibration": 3}, "must be JSON objects"),
        ({"padding": "confetti"}, "padding 'confetti' is unknown"),
        ({"padding": {}}, "padding {} is unknown"),
        ({"roles": {"mask": "0", "eos": 1}}, "role id '0' is not a token id"),
        ({"roles": {"mask": 0, "eos": 1, "ends": 7}}, "not a voidpad card"),
        ({"roles": {"mask": 10**9, "eos": 1}}, "outside the embedding"),
        ({"roles": 4}, "not a voidpad card"),
        ({"family": ["llada"]}, "family"),
        ({"version": 9}, "card version is not 1"),
    ],
)
def test_cards_that_make_no_sense(folder, change_to, mention):
    path = folder("saved")
    change(path / "voidpad.json", **change_to)
    refused(path, mention)


@pytest.mark.parametrize(
    ("change_to", "mention"),
    [
        ({"r": 10**8}, "r=100000000"),
        ({"r": 3}, "no tensor"),
        ({"r": "2"}, "r="),
        ({"rank_pattern": {"q_proj": 10**8}}, "rank_pattern[q_proj]=100000000"),
        ({"lora_alpha": "x"}, "lora_alpha='x'"),
        ({"target_modules": "(.*.*)*x"}, "list the module names instead"),
        ({"target_modules": "(a+)+$"}, "list the module names instead"),
        ({"target_modules": ".*.*.*.*.*q_proj"}, "list the module names instead"),
        ({"target_modules": "[" * 50}, "list the module names instead"),
        ({"rank_pattern": {"(x+x+)+y": 2}}, "list the module names instead"),
        ({"exclude_modules": "(a|aa)+$"}, "list the module names instead"),
        ({"layer_replication": [[0, 2]] * 1000}, "layer_replication"),
        ({"megatron_config": {"a": 1}}, "megatron_config"),
        ({"trainable_token_indices": [10**9]}, ""),
        ({"peft_type": "PREFIX_TUNING"}, "peft_type 'PREFIX_TUNING' is not covered"),
        ({"base_model_name_or_path": ["a"]}, "base"),
        ({"base_model_name_or_path": "/no/such/folder"}, "no such folder"),
    ],
)
def test_adapter_settings_that_make_no_sense(folder, change_to, mention):
    path = folder("adapter")
    change(path / "adapter_config.json", **change_to)
    refused(path, mention)


def test_an_adapter_cannot_start_a_computation(folder):
    """`pissa` decomposes every weight of the base, and replaces it."""
    path = folder("adapter")
    before = load(path).net(torch.tensor([[7, 20]])).logits
    change(path / "adapter_config.json", init_lora_weights="pissa")
    assert torch.equal(load(path).net(torch.tensor([[7, 20]])).logits, before)


def test_an_adapter_of_an_adapter_is_refused(folder, folders, tmp_path):
    path = folder("adapter")
    change(path / "adapter_config.json", base_model_name_or_path=str(path))
    refused(path)


# Files that are no files


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llada", "config.json"),
        ("llada", "model.safetensors"),
        ("llada", "tokenizer.json"),
        ("llada", "tokenizer_config.json"),
        ("llada", "chat_template.jinja"),
        ("dream", "model.safetensors.index.json"),
        ("dream", "model-00001-of-00002.safetensors"),
        ("saved", "voidpad.json"),
        ("adapter", "adapter_config.json"),
        ("adapter", "adapter_model.safetensors"),
        ("saved", "generation_config.json"),
    ],
)
@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_names_that_are_no_files(folder, kind, name, what):
    path = folder(kind)
    (path / name).unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path / name)
    elif what == "device":
        (path / name).symlink_to("/dev/zero")
    else:
        (path / name).mkdir()
    if what == "folder" and name in (
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer_config.json",
    ):
        with contextlib.suppress(VoidpadError):
            load(path)  # such a name may also be ignored
        return
    refused(path, *([] if what == "folder" else [name]))


@pytest.mark.parametrize(
    "file",
    [
        "../llada/model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "x.bin",
        "..",
        "",
        3,
        None,
        ["x"],
        "a\\b",
    ],
)
def test_an_index_stays_in_its_folder(folder, file):
    path = folder("dream")
    index = read_json(path / "model.safetensors.index.json")
    index["weight_map"][sorted(index["weight_map"])[0]] = file
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(path, "weight_map")


@pytest.mark.parametrize("weight_map", [None, [], {}, "x", 3])
def test_an_index_needs_a_map(folder, weight_map):
    path = folder("dream")
    change(path / "model.safetensors.index.json", weight_map=weight_map)
    refused(path, "weight_map")


# Contents


@pytest.mark.parametrize("name", ["config.json", "voidpad.json"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[" * 200_000, b'{"a": ' + b"9" * 10_000 + b"}", b"null", b"3", b'"x"']
)
def test_json_that_is_none(folder, name, content):
    path = folder("saved")
    (path / name).write_bytes(content)
    refused(path, name)


def test_json_of_many_bytes_is_not_read(folder):
    path = folder("saved")
    with (path / "config.json").open("r+b") as file:
        file.truncate(200_000_000)
    refused(path, "200,000,000 bytes")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(folder, value):
    path = folder("saved")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    refused(path, "model.layers.1.mlp.up_proj.weight holds NaN or infinity")
    adapter = folder("adapter")
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = sorted(tensors)[1]
    tensors[name][0, 0] = value
    save_file(tensors, adapter / "adapter_model.safetensors")
    refused(adapter, name, "holds NaN or infinity")


def test_weights_that_are_no_floats(folder):
    path = folder("saved")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int64)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    refused(path, "model.norm.weight", "dtype I64")


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        '{"model": null}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
        '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}, "added_tokens": []}',
        '{"model": {"type": "WordLevel", "vocab": {"a": 99999999999999}, "unk_token": "a"}}',
        '{"model": {"type": "Unigram", "vocab": [], "unk_id": 7}}',
    ],
)
def test_tokenizers_that_are_none(folder, content):
    path = folder("saved")
    (path / "tokenizer.json").write_text(content)
    refused(path, prompt="hi")


def test_a_tokenizer_beyond_the_embedding(folder):
    """Its ids would be looked up in rows that are not there."""
    path = folder("saved")
    tokenizer = read_json(path / "tokenizer.json")
    vocab = tokenizer["model"]["vocab"]
    for letter in "hi":
        vocab[letter] += 10_000
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(path, "outside the embedding", prompt="hi")


def test_a_template_that_never_ends(folder, monkeypatch):
    monkeypatch.setattr("voidpad.models.text._TEMPLATE_SECONDS", 0.5)
    path = folder("saved")
    loop = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    (path / "chat_template.jinja").write_text(loop)
    refused(path, "does not end", prompt="hi")


# Anything else


JSONS = {
    "llada": ["config.json", "tokenizer.json", "tokenizer_config.json"],
    "dream": ["config.json", "model.safetensors.index.json", "tokenizer_config.json"],
    "saved": ["config.json", "voidpad.json", "tokenizer.json", "tokenizer_config.json"],
    "adapter": ["adapter_config.json", "voidpad.json"],
    "experts": ["config.json"],
    "saved experts": ["config.json", "voidpad.json"],
}
WEIGHTS = {
    "llada": "model.safetensors",
    "dream": "model-00001-of-00002.safetensors",
    "saved": "model.safetensors",
    "adapter": "adapter_model.safetensors",
    "experts": "model.safetensors",
    "saved experts": "model.safetensors",
}


def fuzz(folders, tmp_path, seeds):
    """Whatever a folder holds: it loads and encodes, or one line says why not."""
    for seed in seeds:
        draw = random.Random(seed)
        kind = draw.choice(list(JSONS))
        path = tmp_path / f"{kind}-{seed}"
        shutil.copytree(folders / kind, path)
        if draw.random() < 0.25:
            target = path / WEIGHTS[kind]
            target.write_bytes(mutated_tensors(draw, target.read_bytes()))
        else:
            target = path / draw.choice(JSONS[kind])
            target.write_bytes(mutated_json(draw, target.read_text(encoding="utf-8")))
        reads_or_says_why(
            lambda path=path: load(path).encode("hi <|mask|> there"), f"seed {seed}, {target.name}"
        )
        shutil.rmtree(path)


def test_anything_else(folders, tmp_path):
    fuzz(folders, tmp_path, range(80))


@pytest.mark.slow
def test_anything_else_for_minutes(folders, tmp_path):
    fuzz(folders, tmp_path, range(1000, 4000))
