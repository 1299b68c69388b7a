"""Model folders that are incomplete or damaged: one line that names the file and what is wrong with it."""

import json
import shutil

import pytest
import torch

from originals import adapted, write_original
from voidpad.errors import VoidpadError
from voidpad.files import read_json
from voidpad.models import load, random_model, save

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder of each kind: released LLaDA, Dream (sharded) and LLaDA-MoE, one saved by voidpad, and an adapter."""
    root = tmp_path_factory.mktemp("folders")
    write_original(random_model("llada"), root / "llada")
    write_original(random_model("dream"), root / "dream", shards=2)
    write_original(random_model("llada_moe"), root / "experts")
    save(random_model("llada"), root / "saved")
    model = adapted(random_model("llada"), r=2)
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
    def use():
        model = load(folder)
        if prompt is not None:
            model.encode(prompt)

    with pytest.raises(VoidpadError) as caught:
        use()
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 1000
    for mention in mentions:
        assert mention in message


FILES = [
    ("llada", "config.json"),
    ("llada", "model.safetensors"),
    ("llada", "tokenizer.json"),
    ("dream", INDEX),
    ("dream", "model-00001-of-00002.safetensors"),
    ("saved", "voidpad.json"),
    ("adapter", "adapter_config.json"),
    ("adapter", "adapter_model.safetensors"),
]


DAMAGED = {"tokenizer.json": "tokenizer"}
MISSING = {  # what is looked for instead, or what is unknown then
    "tokenizer.json": "vocab.json",
    "adapter_config.json": "config.json",
    "voidpad.json": "model_type 'llama'",
    INDEX: WHOLE,
}


@pytest.mark.parametrize(("kind", "name"), FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "binary", "missing"])
def test_a_damaged_file(folder, kind, name, damage):
    path = folder(kind)
    content = (path / name).read_bytes()
    damaged = {"cut": content[: len(content) // 2], "empty": b"", "binary": b"\xff\xfe" + content[2:]}
    if damage == "missing":
        (path / name).unlink()
    else:
        (path / name).write_bytes(damaged[damage])
    refused(path, MISSING.get(name, name) if damage == "missing" else DAMAGED.get(name, name))


@pytest.mark.parametrize("content", ["null", "3", "[]", '"x"', "[" * 100_000])
def test_json_that_is_no_object(folder, content):
    path = folder("saved")
    for name in ("voidpad.json", "config.json"):
        (path / name).write_text(content)
        refused(path, name)


@pytest.mark.parametrize(
    ("kind", "field", "value", "mention"),
    [
        ("llada", "n_layers", 10**6, "layers"),
        ("dream", "num_hidden_layers", 3, "missing: model.layers.2"),
        ("dream", "vocab_size", 65, "for [65, 32]"),
        ("dream", "num_key_value_heads", 3, "config"),
        ("llada", "embedding_size", "64", "config.json"),
        ("llada", "rope_theta", None, "config.json"),
        ("experts", "num_experts", 5, "experts"),
        ("saved", "hidden_size", None, "config.json"),
    ],
)
def test_a_config_that_does_not_fit_the_files(folder, kind, field, value, mention):
    path = folder(kind)
    change(path / "config.json", **{field: value})
    refused(path, mention)


@pytest.mark.parametrize(
    ("changes", "mention"),
    [
        ({"calibration": 3}, "calibration"),
        ({"padding": "confetti"}, "confetti"),
        ({"roles": {"mask": 10**9, "eos": 1}}, "outside the embedding"),
        ({"roles": 4}, "voidpad.json"),
        ({"family": "gpt"}, "gpt"),
        ({"version": 9}, "version"),
    ],
)
def test_a_card_that_cannot_be(folder, changes, mention):
    path = folder("saved")
    change(path / "voidpad.json", **changes)
    refused(path, mention)


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 3},
        {"layer_replication": [[0, 2]]},
        {"trainable_token_indices": [10**9]},
        {"peft_type": "PREFIX_TUNING"},
        {"base_model_name_or_path": None},
        {"base_model_name_or_path": "/no/such/folder"},
    ],
    ids=str,
)
def test_an_adapter_that_cannot_be(folder, changes):
    path = folder("adapter")
    change(path / "adapter_config.json", **changes)
    refused(path)


def test_an_adapter_starts_no_computation(folder):
    """`pissa` decomposes every weight of the base, and replaces it."""
    path = folder("adapter")
    before = load(path).net(torch.tensor([[7, 20]])).logits
    change(path / "adapter_config.json", init_lora_weights="pissa")
    assert torch.equal(load(path).net(torch.tensor([[7, 20]])).logits, before)


def test_a_tokenizer_beyond_the_embedding(folder):
    """Its ids would be looked up in rows that are not there."""
    path = folder("saved")
    tokenizer = read_json(path / "tokenizer.json")
    for letter in "hi":
        tokenizer["model"]["vocab"][letter] += 10_000
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(path, "outside the embedding", prompt="hi")
