"""A practitioner's week by the commands alone: own chats, training with a kill, merge, calibration, evaluation in
parts, comparison and diagnosis."""

import json
import shutil
import signal
import subprocess
import sys
import time
from random import Random

import pytest
from safetensors import safe_open

from voidpad.builtin.tasks import TASKS
from voidpad.evaluate import read_run
from voidpad.models import read_card

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


@pytest.mark.slow
def test_from_chats_to_a_tuned_model(voidpad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(line: str, *words: object) -> str:
        ran = voidpad(line, *words)
        assert ran.status == 0, f"voidpad {line}\n{ran.out}\n{ran.err}"
        return ran.out

    rng, task = Random(3), TASKS["tiny_expr"]
    problems = [task.sample(rng) for _ in range(60)]
    chats = [{"prompt": problem.prompt, "response": task.answer(problem, rng)} for problem in problems]
    chats.append({"messages": [{"role": "user", "content": "nobody answers"}]})
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    shown = run("data prepare data.safetensors --from chats.jsonl --model tiny-instruct --skip-bad")
    assert [line.split()[-1] for line in shown.splitlines() if "kept, whole" in line] == ["60"]

    # Training: killed after its first checkpoint, resumed to its end.
    (tmp_path / "recipe.toml").write_text(RECIPE)
    training = subprocess.Popen([sys.executable, "-m", "voidpad", "train", "recipe.toml"])
    while training.poll() is None and not list((tmp_path / "tuned").glob("checkpoint-*")):
        time.sleep(0.02)
    assert training.poll() is None
    training.send_signal(signal.SIGKILL)
    training.wait()
    assert not (tmp_path / "tuned" / "model").exists()
    assert "finished after 8 steps" in run("train recipe.toml --resume")

    # One folder that needs neither base nor adapter. Calibration on the training data is kept in it.
    run("merge tiny-instruct --adapter tuned/model --out merged")
    with safe_open(tmp_path / "merged" / "model.safetensors", "pt") as merged:
        assert not any("lora" in name for name in merged.keys())  # noqa: SIM118  it is no dictionary
    search = "--canvas 32 --limit 96 --block 32 --prompts 4"
    run(f"calibrate --model merged --data data.safetensors {search} --save merged")
    card = read_card(tmp_path / "merged")
    assert card.padding == "void"
    assert "window" in card.calibration["void-expansion"]

    # Evaluation before and after, the second one in two parts that are joined.
    size = "--tasks tiny_expr --limit 4 --canvas 64 --block 32"
    run(f"eval --model tiny-instruct {size} --out runs/before")
    for part in (0, 1):
        run(f"eval --model merged {size} --shard {part}/2 --out runs/part-{part}")
    run("join runs/part-0 runs/part-1 --out runs/after")
    before, after = (read_run(tmp_path / "runs" / name) for name in ("before", "after"))
    assert [one["index"] for one in after.examples] == [0, 1, 2, 3]
    assert (before.config.plan, after.config.plan) == ("original", "void")
    assert before.config.weights != after.config.weights
    run("report --compare runs/before runs/after --out compared")
    assert "| tiny_expr | 4 |" in (tmp_path / "compared" / "compare.md").read_text()
    found = run("analyze overflow --model tiny-instruct --count 2 --canvas 96 --blocks 32,96")
    assert found.index("--plan eos-last") < found.index("--block 32") < found.index("voidpad train")

    # The merged folder alone answers; the base is the package's, so only the adapter is taken away.
    shutil.rmtree(tmp_path / "tuned")
    shown = run("generate --model merged --canvas 64 --block 32 --json", problems[0].prompt)
    assert json.loads(shown)["canvas"] == 64
