"""How commands load models: device, precision, the line that says so, and `voidpad merge`."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from originals import adapted
from voidpad.commands import options
from voidpad.commands.cli import app
from voidpad.commands.options import ModelOptions, role_ids, slow
from voidpad.errors import ConfigError
from voidpad.models import load, random_model, save
from voidpad.models.device import DeviceConfig


def run(*arguments):
    return CliRunner().invoke(app, [str(word) for word in arguments])


@pytest.fixture
def base(tmp_path):
    save(random_model(seed=1), tmp_path / "base")
    return tmp_path / "base"


# Devices


@pytest.mark.parametrize(
    ("cuda", "mps", "best"),
    [(False, False, "cpu"), (False, True, "mps"), (True, True, "cuda"), (True, False, "cuda")],
)
def test_auto_is_cuda_then_mps_then_cpu(monkeypatch, cuda, mps, best):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert DeviceConfig("auto").device == best
    assert DeviceConfig("auto").options(torch.bfloat16)["dtype"] == (
        torch.float32 if best == "cpu" else torch.bfloat16
    )
    assert "device_map" not in DeviceConfig("auto").options(torch.bfloat16)


def test_spread_is_its_own_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    place = DeviceConfig("spread")
    assert place.options(torch.bfloat16) == {"dtype": torch.bfloat16, "device_map": "auto"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="spread"):
        DeviceConfig("spread")


@pytest.mark.parametrize("device", ["meta", "tpu", "mps", "cuda:99", ""])
def test_devices_that_are_not_here(device):
    with pytest.raises(ConfigError, match=f"device '{device}'"):
        DeviceConfig(device)


def test_weights_beyond_the_memory_are_refused_before_it_is_taken():
    place = DeviceConfig("cpu")
    place.check_memory(10**6, torch.float32, where="model")
    with pytest.raises(ConfigError, match="40000 GB"):
        place.check_memory(10**13, torch.bfloat16, where="model")


# What was loaded


def test_the_line_says_device_dtype_parameters_and_memory(base, monkeypatch, capsys):
    shown = ModelOptions(str(base), None, "cpu", "auto", None)
    assert repr(shown.load()) == f"Model({base} on cpu: float32, 0.02 M parameters, 0.1 MB)"
    assert capsys.readouterr().err == ""  # small, and no terminal
    monkeypatch.setattr(options, "LARGE", 1000)
    shown.load()
    assert capsys.readouterr().err == f"{base} on cpu: float32, 0.02 M parameters, 0.1 MB\n"


def test_billions_of_parameters_in_float32_on_a_cpu_warn(base, monkeypatch, capsys):
    monkeypatch.setattr(options, "MANY", 1000)
    assert slow(ModelOptions(str(base), None, "cpu", "auto", None).load())
    assert "--dtype bfloat16" in capsys.readouterr().err
    assert slow(load(base, dtype="bfloat16")) is None


def test_quantized_weights_are_counted_whole(base):
    save(random_model(hidden=64, intermediate=128), base.parent / "wide")
    plain, small = load(base.parent / "wide"), load(base.parent / "wide", quantize="4bit")
    assert small.parameters == plain.parameters
    assert "4bit weights" in small.summary


def test_roles_on_the_command_line():
    assert role_ids(["void=56940", "rainbow=56940,86766", "ends = 5"]) == {
        "void": 56940,
        "rainbow": (56940, 86766),
        "ends": 5,
    }
    for text in ("void", "void=x", "mask=", "mask=²"):
        with pytest.raises(ConfigError, match="--roles"):
            role_ids([text])


# merge


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_merge_keeps_the_stored_dtype(base, tmp_path, dtype):
    folder, path = tmp_path / "adapter", base / "model.safetensors"
    save(adapted(load(base), r=2), folder)
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path)
    ran = run("merge", base, "--adapter", folder, "--out", tmp_path / "merged")
    assert ran.exit_code == 0, ran.output
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert {tensor.dtype for tensor in merged.values()} == {dtype}
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == str(dtype).split(".")[1]
    # The sum is made in float32 and rounded once.
    name = "model.layers.0.self_attn.q_proj"
    tuned = load_file(folder / "adapter_model.safetensors")
    a, b = (tuned[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    stored = load_file(base / "model.safetensors")[f"{name}.weight"].float()
    assert torch.equal(merged[f"{name}.weight"], (stored + 8 / 2 * b @ a).to(dtype))
