"""Fingerprints: equal for equal weights wherever they lie, different as soon as a tensor or a setting is."""

import json
import os
import shutil
import time

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

import voidpad.models.fingerprint as module
from originals import write_original
from voidpad.errors import ConfigError, WeightsError
from voidpad.models import load, merge, random_model, save
from voidpad.models.fingerprint import cache_folder, fingerprint


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "voidpad" / "fingerprints"


@pytest.fixture
def base(tmp_path):
    save(random_model(seed=1), tmp_path / "base")
    return tmp_path / "base"


def write_adapter(folder, base, *, seed=0, **config):
    model = random_model(seed=1)
    net = get_peft_model(model.net, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **config))
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn(parameter.shape, generator=generator)
    net.peft_config["default"].base_model_name_or_path = str(base)
    model.net = net
    save(model, folder)
    return folder


def age(*folders, hours=1):
    """Files that were last changed an hour ago."""
    for folder in folders:
        for path in folder.glob("*.safetensors"):
            os.utime(path, (time.time() - 3600 * hours,) * 2)


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
    age(base, folder)
    first = fingerprint(base, folder)
    assert first != fingerprint(base)
    assert fingerprint(folder) == first  # the adapter names its base
    shutil.rmtree(folder)
    write_adapter(folder, base, seed=1)
    age(folder)
    second = fingerprint(base, folder)
    shutil.rmtree(folder)
    write_adapter(folder, base, seed=1, lora_alpha=99)
    assert len({first, second, fingerprint(base, folder)}) == 3
    with pytest.raises(ConfigError, match="is an adapter itself"):
        fingerprint(folder, folder)


def test_every_shard_counts(tmp_path):
    folder = write_original(random_model("dream"), tmp_path / "shards", shards=3)
    digest = fingerprint(folder)
    last = sorted(folder.glob("*.safetensors"))[-1]
    save_file({name: tensor + 1 for name, tensor in load_file(last).items()}, last)
    assert fingerprint(folder) != digest
    last.unlink()
    with pytest.raises(WeightsError, match=r"00003-of-00003.safetensors: no such file"):
        fingerprint(folder)


def readings(monkeypatch):
    """The files that are read in full from now on."""
    read = []
    real = module.hashlib.file_digest
    monkeypatch.setattr(
        module.hashlib, "file_digest", lambda file, kind: read.append(file.name) or real(file, kind)
    )
    return read


def test_an_unchanged_file_is_read_once(base, monkeypatch, cache):
    age(base)
    read = readings(monkeypatch)
    assert cache_folder() == cache
    assert fingerprint(base) == fingerprint(base)
    assert len(read) == 1
    assert [path.suffix for path in cache.iterdir()] == [".json"]


def test_same_size_and_times_put_back_is_still_noticed(base, monkeypatch):
    age(base)
    path = base / "model.safetensors"
    before = path.stat()
    first = fingerprint(base)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    tick = base / "tick"
    while (
        not tick.exists() or tick.stat().st_ctime_ns == path.stat().st_ctime_ns
    ):  # the file system's clock is coarse
        tick.write_bytes(b"")
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fingerprint(base) != first


def test_a_file_still_being_written_is_not_cached(base, monkeypatch):
    read = readings(monkeypatch)
    age(base, hours=-1)  # a busy machine may take a while from here to the readings
    fingerprint(base), fingerprint(base)
    assert len(read) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state": 1}', b"\xff", b"[" * 100_000, b"null"])
def test_a_damaged_cache_is_read_again(base, cache, content):
    age(base)
    digest = fingerprint(base)
    (entry,) = cache.iterdir()
    entry.write_bytes(content)
    assert fingerprint(base) == digest
    assert json.loads(entry.read_bytes())["sha256"]  # and repaired


def test_a_forged_digest_of_another_state_is_not_used(base, cache):
    age(base)
    digest = fingerprint(base)
    (entry,) = cache.iterdir()
    stored = json.loads(entry.read_bytes())
    stored["state"][1] += 1
    entry.write_text(json.dumps(stored | {"sha256": "00" * 32}))
    assert fingerprint(base) == digest


def test_a_cache_that_cannot_be_written_costs_only_time(base, tmp_path, monkeypatch):
    age(base)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert fingerprint(base) == fingerprint(base)


def test_pipes_are_refused_at_once(base):
    (base / "model.safetensors").unlink()
    os.mkfifo(base / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model.safetensors"):
        fingerprint(base)


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
