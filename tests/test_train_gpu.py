"""Training on a GPU: the device-built batches, bfloat16 with compilation, and Trainer's own FSDP."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training_runs import materials, recipe
from voidpad.training.train import prepare, train

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return materials(tmp_path_factory.mktemp("training"), rows=400)


def test_batches_are_the_same_on_both_devices(folder):
    settings = recipe(folder, padding={"width": "virtual"}, noise={"stratified": True, "suffix": 0.2})
    ours = prepare(settings).batches
    rows = ours.rows
    there = [{name: value.cpu() for name, value in ours[k].items()} for k in range(6)]
    rows.pairs = rows.pairs.to("cpu")
    for device in (
        "cuda",
        "cpu",
    ):  # data too large for the GPU: laid out on the host; and everything on the host
        rows.device = torch.device(device)
        for k in range(6):
            update, first = ours.share.first(k)
            position = update * ours.share.global_batch + first + torch.arange(ours.share.micro_batch)
            here = ours.build(0, position)
            assert here.keys() == there[k].keys()
            assert {value.device.type for value in here.values()} == {device}
            for name, value in here.items():
                assert torch.allclose(value.cpu().double(), there[k][name].double()), name


@pytest.mark.parametrize("compile", [False, True])
def test_bfloat16_follows_float32(folder, compile):
    losses = {}
    for bf16 in ("off", "on"):
        output = folder / f"{bf16}-{compile}"
        run = {
            "output": str(output),
            "bf16": bf16,
            "compile": compile,
            "steps": 20,
            "log_every": 20,
            "save_every": 50,
        }
        train(recipe(folder, run=run))
        losses[bf16] = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
    assert losses["on"] == pytest.approx(losses["off"], rel=0.02)


SHARDED = """
import sys
from pathlib import Path
from torch.distributed.tensor import DTensor
from training_runs import recipe
from voidpad.training.train import prepare, train
folder = Path(sys.argv[1])
run = {"output": str(folder / "fsdp"), "fsdp": True, "bf16": "off"}
trainer = prepare(recipe(folder, run={**run, "steps": 2}))
trainer.train()
assert all(isinstance(p, DTensor) for p in trainer.model.parameters())
train(recipe(folder, run={**run, "steps": 6}), resume=True)
"""


def test_trainers_own_fsdp_on_one_gpu(folder):
    train(recipe(folder, run={"output": str(folder / "plain"), "bf16": "off"}))
    script = folder / "sharded.py"
    script.write_text(SHARDED)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "1",
        str(script),
        str(folder),
    ]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    one, two = (load_file(folder / name / "model" / "model.safetensors") for name in ("plain", "fsdp"))
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-4
