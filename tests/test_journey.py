"""A practitioner's week as one run, by the commands alone: own chats, training with a kill, merge, calibration,
evaluation, comparison, diagnosis, export, and the wheel in a fresh environment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from random import Random

import pytest
from safetensors import safe_open

from studies.release.check_wheel import build, try_wheel
from voidpad.builtin.tasks import TASKS
from voidpad.evaluate import read_run
from voidpad.models import read_card

ROOT = Path(__file__).parents[1]
RECIPE = """
[model]
name = "tiny-instruct"
[data]
path = "data.safetensors"
held_out = 8
[padding]
policy = "void"
width = "window"
window = [32, 128]
[lora]
r = 8
alpha = 16
dropout = 0.0
[optim]
lr = 1e-3
[run]
output = "tuned"
steps = 8
global_batch = 8
micro_batch = 8
save_every = 2
log_every = 1
report_to = []
"""


class Journey:
    """Commands in one folder, away from the sources."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *words: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "voidpad", *map(str, words)]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *words: object) -> str:
        process = self.start(*words)
        shown, complaints = process.communicate(timeout=1800)
        assert process.returncode == 0, f"voidpad {' '.join(map(str, words))}\n{shown}\n{complaints}"
        return shown


@pytest.mark.slow
def test_from_chats_to_a_wheel(tmp_path):
    voidpad = Journey(tmp_path)

    # Data: three formats, one conversation in each that has nothing to learn.
    rng, task = Random(3), TASKS["tiny_expr"]
    problems = [task.sample(rng) for _ in range(60)]
    pairs = [(problem.prompt, task.answer(problem, rng)) for problem in problems]
    lines = [
        {"messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": p},
                      {"role": "assistant", "content": a}]} for p, a in pairs[:20]
    ]  # fmt: skip
    lines.append({"messages": [{"role": "user", "content": "nobody answers"}]})
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    turns = [[{"from": "human", "value": p}, {"from": "gpt", "value": a}] for p, a in pairs[20:40]]
    turns.append([{"from": "human", "value": "nobody answers"}])
    (tmp_path / "sharegpt.json").write_text(json.dumps([{"conversations": turn} for turn in turns]))
    alpaca = [{"instruction": "Work it out.", "input": p, "output": a} for p, a in pairs[40:]]
    (tmp_path / "alpaca.jsonl").write_text("".join(json.dumps(line) + "\n" for line in alpaca))
    sources = [word for name in ("chats.jsonl", "sharegpt.json", "alpaca.jsonl") for word in ("--from", name)]
    shown = voidpad("data", "prepare", "data.safetensors", *sources, "--model", "tiny-instruct")
    assert count_of(shown, "conversations read") == 62
    assert count_of(shown, "no assistant message") == 2
    assert count_of(shown, "examples kept, whole") == 60

    # Training: killed after its first checkpoint, resumed to its end.
    (tmp_path / "recipe.toml").write_text(RECIPE)
    training = voidpad.start("train", "recipe.toml")
    while training.poll() is None and not list((tmp_path / "tuned").glob("checkpoint-*")):
        time.sleep(0.02)
    assert training.poll() is None, training.communicate()
    training.send_signal(signal.SIGKILL)
    training.communicate()
    assert not (tmp_path / "tuned" / "model").exists()
    assert "finished after 8 steps" in voidpad("train", "recipe.toml", "--resume")
    adapter = tmp_path / "tuned" / "model"

    # Export: one folder that needs neither base nor adapter. Its weights are not the base's.
    voidpad("merge", "tiny-instruct", "--adapter", adapter, "--out", "merged")
    assert read_card(tmp_path / "merged").padding == "void"
    with safe_open(tmp_path / "merged" / "model.safetensors", "pt") as merged:
        assert not any("lora" in name for name in merged.keys())  # noqa: SIM118  it is no dictionary

    # Calibration on the training data, kept in the exported folder.
    search = ("--canvas", 32, "--limit", 96, "--block", 32, "--prompts", 4)
    data = ("--data", "data.safetensors")
    voidpad("calibrate", "--model", "merged", *data, *search, "--save", "merged")
    assert "window" in read_card(tmp_path / "merged").calibration["void-expansion"]

    # Evaluation before and after, the second one in two parts that are joined.
    size = ("--tasks", "tiny_expr", "--limit", 4, "--canvas", 64, "--block", 32)
    voidpad("eval", "--model", "tiny-instruct", *size, "--out", "runs/before")
    for part in (0, 1):
        voidpad("eval", "--model", "merged", *size, "--shard", f"{part}/2", "--out", f"runs/part-{part}")
    voidpad("join", "runs/part-0", "runs/part-1", "--out", "runs/after")
    before, after = (read_run(tmp_path / "runs" / name) for name in ("before", "after"))
    assert [one["index"] for one in after.examples] == [0, 1, 2, 3]
    assert before.config.plan == "original"
    assert after.config.plan == "void"
    assert before.config.weights != after.config.weights

    # Comparison and diagnosis.
    voidpad("report", "--compare", "runs/before", "runs/after", "--out", "compared")
    assert "| tiny_expr | 4 |" in (tmp_path / "compared" / "compare.md").read_text()
    assert "tiny_expr" in (tmp_path / "compared" / "compare.html").read_text()
    found = voidpad(
        "analyze", "overflow", "--model", "tiny-instruct", "--count", 2, "--canvas", 96, "--blocks", "32,96"
    )
    assert "--block 32" in found  # what to do now
    assert "voidpad train" in found  # and what to do properly

    # The merged folder alone answers; the base is the package's, so only the adapter is taken away.
    shutil.rmtree(tmp_path / "tuned")
    shown = voidpad(
        "generate", problems[0].prompt, "--model", "merged", "--canvas", 64, "--block", 32, "--json"
    )
    assert json.loads(shown)["canvas"] == 64

    # The wheel in a fresh environment; the workflow does the same on every supported Python.
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try_wheel(build(tmp_path / "dist"), version)


def count_of(table: str, label: str) -> int:
    line = next(line for line in table.splitlines() if label in line)
    return int(line.replace("│", " ").replace(",", "").split()[-1])
