"""Fingerprints: equal for equal weights wherever they lie, different as soon as a tensor or a setting is."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from originals import adapted, write_original
from voidpad.errors import WeightsError
from voidpad.models import load, merge, random_model, save
from voidpad.models.locate import find_source


def fingerprint(name, adapter=None):
    return find_source(name, adapter).fingerprint


@pytest.fixture
def base(tmp_path):
    save(random_model(seed=1), tmp_path / "base")
    return tmp_path / "base"


def write_adapter(folder, base, **changes):
    model = adapted(random_model(seed=1), **changes)
    model.net.peft_config["default"].base_model_name_or_path = str(base)
    save(model, folder)
    return folder


def test_names_do_not_matter_and_weights_do(base, tmp_path):
    digest = fingerprint(base)
    assert len(bytes.fromhex(digest)) == 32
    shutil.copytree(base, tmp_path / "copy")
    base.rename(tmp_path / "renamed")
    assert fingerprint(tmp_path / "copy") == fingerprint(tmp_path / "renamed") == digest
    save(random_model(seed=2), tmp_path / "other")
    assert fingerprint(tmp_path / "other") != digest


def test_settings_that_change_the_function_matter(base, tmp_path):
    digest = fingerprint(base)
    path = base / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"_name_or_path": "elsewhere", "transformers_version": "9"}))
    assert fingerprint(base) == digest
    path.write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert fingerprint(base) != digest


def test_a_changed_adapter_in_the_same_folder_is_another_model(base, tmp_path):
    folder = write_adapter(tmp_path / "adapter", base)
    first = fingerprint(base, folder)
    assert first != fingerprint(base)
    assert fingerprint(folder) == first  # the adapter names its base
    shutil.rmtree(folder)
    write_adapter(folder, base, seed=1)
    second = fingerprint(base, folder)
    shutil.rmtree(folder)
    write_adapter(folder, base, seed=1, lora_alpha=99)
    assert len({first, second, fingerprint(base, folder)}) == 3


def test_every_shard_counts(tmp_path):
    folder = write_original(random_model("dream"), tmp_path / "shards", shards=3)
    digest = fingerprint(folder)
    last = sorted(folder.glob("*.safetensors"))[-1]
    save_file({name: tensor + 1 for name, tensor in load_file(last).items()}, last)
    assert fingerprint(folder) != digest
    last.unlink()
    with pytest.raises(WeightsError, match=r"00003-of-00003.safetensors: no such file"):
        fingerprint(folder)


def test_a_loaded_model_has_the_fingerprint_of_its_files(base, tmp_path):
    folder = write_adapter(tmp_path / "adapter", base)
    assert load(base).fingerprint == fingerprint(base)
    assert load(base, folder).fingerprint == load(folder).fingerprint == fingerprint(base, folder)
    assert merge(load(folder)).fingerprint == fingerprint(folder)


def test_weights_in_memory_have_one_too():
    first, same, other = random_model(seed=1), random_model(seed=1), random_model(seed=2)
    assert first.fingerprint == same.fingerprint != other.fingerprint
    first.net.bfloat16()
    assert first.fingerprint != same.fingerprint
