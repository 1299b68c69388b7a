"""Training on a GPU: the device-built batches, bfloat16 with compilation, and FSDP."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training_runs import entries, gradients, materials, recipe
from voidpad.training import setup
from voidpad.training.train import Run, train

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return materials(tmp_path_factory.mktemp("training"), rows=400)


def test_batches_are_the_same_on_both_devices(folder):
    settings = recipe(
        folder, padding={"width": "window", "window": [2, 24]}, noise={"stratified": True, "suffix": 0.2}
    )
    ours = Run(settings).passes
    rows = ours.rows
    there = [[_host(one) for one in ours[update]] for update in range(6)]
    rows.pairs = rows.pairs.to("cpu")
    # Data too large for the GPU: laid out on the host; and everything on the host.
    for device in ("cuda", "cpu"):
        rows.device = torch.device(device)
        for update in range(6):
            for here, other in zip(ours[update], there[update], strict=True):
                assert here.ids.device.type == device
                assert _host(here).keys() == other.keys()
                for name, value in _host(here).items():
                    assert torch.allclose(value.double(), other[name].double()), name


def _host(one):
    """The tensors of a pass, on the host."""
    parts = vars(one) | vars(one.slots) | (vars(one.segments) if one.segments else {})
    return {name: value.cpu() for name, value in parts.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("lora", [None, {"r": 4, "dropout": 0.0}], ids=["full", "lora"])
def test_gradients_do_not_depend_on_passes(folder, lora, monkeypatch):
    """In bfloat16 the variable-length kernel and the padded one round differently, and no more than that."""
    monkeypatch.setattr(setup, "END_TO_END_PARAMETERS", 0)
    found = {}
    for attention in (None, "sdpa"):  # rows end to end, and padded
        parts = {
            "padding": {"width": "window", "window": [2, 24]},
            "model": {"attention": attention},
            "lora": lora or {},
        }
        parts = parts if lora else {name: part for name, part in parts.items() if name != "lora"}
        for tokens in (16, 64, 4096):
            run = {"pass_tokens": tokens, "bf16": "on"}
            one = Run(recipe(folder, **parts, run=run))
            assert one.passes.limit.end_to_end == (attention is None)
            grads = [grad.flatten() for grad in gradients(one)[0].values()]
            found[attention, tokens] = torch.cat(grads).float()
    first = found[None, 4096]
    for grads in found.values():
        assert (grads - first).norm() < 0.03 * first.norm()


@pytest.mark.parametrize("compile", [False, True])
def test_bfloat16_follows_float32(folder, compile):
    losses = {}
    for bf16 in ("off", "on"):
        run = {"bf16": bf16, "compile": compile, "steps": 20, "log_every": 20, "save_every": 50}
        train(recipe(folder, f"{bf16}-{compile}", run=run))
        losses[bf16] = entries(folder / f"{bf16}-{compile}")[-1]["loss"]
    assert losses["on"] == pytest.approx(losses["off"], rel=0.02)


def test_compiled_layers_settle(folder, monkeypatch):
    """Passes of many lengths share a few graphs: none is compiled after the first 50 updates."""
    monkeypatch.setattr(setup, "END_TO_END_PARAMETERS", 0)
    run = {"compile": True, "bf16": "on", "pass_tokens": 512, "global_batch": 20}
    one = Run(recipe(folder, padding={"width": "window", "window": [16, 96]}, run=run))
    assert one.passes.limit.end_to_end
    torch._dynamo.utils.counters.clear()
    shapes, graphs = set(), []
    for update in range(60):
        shapes |= {part.ids.shape for part in one.passes[update]}
        gradients(one, update)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(shapes) > 1
    assert graphs[0] > 0
    assert graphs[-1] == graphs[50]


SHARDED = """
import sys
from pathlib import Path
from torch.distributed.tensor import DTensor
from training_runs import recipe
from voidpad.training.train import train
folder = Path(sys.argv[1])
run = {"fsdp": True, "bf16": "off"}
def sharded(run, entries):
    assert run.sharded
    assert all(isinstance(p, DTensor) for p in run.module.parameters())
train(recipe(folder, "fsdp", run={**run, "steps": 2}), watch=sharded)
train(recipe(folder, "fsdp", run={**run, "steps": 6}), resume=True)
"""


def test_fsdp_on_one_gpu(folder):
    train(recipe(folder, "plain", run={"bf16": "off"}))
    script = folder / "sharded.py"
    script.write_text(SHARDED)
    launch = "-m torch.distributed.run --nproc-per-node 1"
    command = [sys.executable, *launch.split(), str(script), str(folder)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    one, two = (load_file(folder / name / "model" / "model.safetensors") for name in ("plain", "fsdp"))
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-4
