"""Training runs: the same weights however the run is divided, killed or sharded; checkpoints whole or absent."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training_runs import entries, finish, materials, recipe
from voidpad.errors import ConfigError, DataError, RoleError, WeightsError
from voidpad.models import load, merge, random_model, read_card
from voidpad.training import prepared as data
from voidpad.training.recipe import check
from voidpad.training.setup import network
from voidpad.training.train import Run, train

ROOT = Path(__file__).parents[1]
ADAPTER = "adapter_model.safetensors"
PATHS = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(PATHS),
    "TOKENIZERS_PARALLELISM": "false",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return materials(tmp_path_factory.mktemp("training"))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(output):
    return load_file(output / "model" / "model.safetensors")


def assert_same(one, two, tolerance=1e-6):
    assert one.keys() == two.keys()
    assert max((one[name] - two[name]).abs().max().item() for name in one) <= tolerance


@pytest.mark.parametrize("parts", [{}, {"lora": {"r": 4}}], ids=["full", "lora"])
def test_a_model_in_training_does_not_report_the_weights_it_started_from(folder, parts):
    settings = recipe(folder, **parts)
    model = network(settings, data.read(Path(settings.data.path)), torch.device("cpu"))
    before = model.fingerprint
    assert before != load(folder / "start").fingerprint
    with torch.no_grad():
        next(weight for weight in model.net.parameters() if weight.requires_grad).add_(1)
    assert model.fingerprint != before


@pytest.fixture(scope="module")
def whole(folder):
    """One process, micro-batch 4, accumulation 2."""
    train(recipe(folder, run={"output": str(folder / "whole")}))
    return weights(folder / "whole")


TWO = """
import sys
from pathlib import Path
from torch.distributed.tensor import DTensor
from training_runs import recipe
from voidpad.training.train import Run, train
folder = Path(sys.argv[1])
train(recipe(folder, run={"output": str(folder / "two")}))
sharded = {"output": str(folder / "sharded"), "fsdp": True}
run = Run(recipe(folder, run=sharded))
assert all(isinstance(p, DTensor) for p in run.module.parameters())
assert all(p.to_local().numel() < p.numel() for p in run.module.parameters())
train(recipe(folder, run={**sharded, "steps": 2}))
train(recipe(folder, run={**sharded, "steps": 4}), resume=True)
paced = recipe(folder, run={"output": str(folder / "paced"), "steps": 3})
assert train(paced, max_seconds=1000).steps == 3  # which is no multiple of log_every
for fsdp in (False, True):
    run = {"output": str(folder / f"held-{fsdp}"), "fsdp": fsdp, "steps": 2, "pass_tokens": 24}
    train(recipe(folder, data={"held_out": 9}, run=run))
for steps in (1, 3):
    run = {"output": str(folder / "sharded-lora"), "fsdp": True, "steps": steps}
    train(recipe(folder, lora={"r": 4, "dropout": 0.0}, run=run), resume=True)
"""


@pytest.fixture(scope="module")
def two(folder):
    """Two gloo processes: a DDP run, and four steps of a sharded run with a restart in the middle."""
    script = folder / "two.py"
    script.write_text(TWO)
    launch = "-m torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0"
    command = [sys.executable, *launch.split(), str(script), str(folder)]
    run = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr
    return folder


def test_two_processes_give_the_weights_of_one(two, whole):
    assert_same(whole, weights(two / "two"))


def test_sharded_processes_give_the_weights_of_one(two, whole):
    # Gathered checkpoints load without sharding: one plain process ends what two sharded ones began.
    train(recipe(two, run={"output": str(two / "sharded"), "fsdp": True}), resume=True)
    assert_same(whole, weights(two / "sharded"))


def test_two_processes_measure_the_held_out_loss_of_one(two):
    """Nine rows in mini-batches of four: the processes have different numbers of them. One makes a single pass."""
    train(recipe(two, data={"held_out": 9}, run={"output": str(two / "held-one"), "steps": 2}))
    one, *others = (
        json.loads((two / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("held-one", "held-False", "held-True")
    )
    for other in others:
        assert other["eval_loss"] == pytest.approx(one["eval_loss"], abs=1e-5)
        assert other["eval_loss_response"] == pytest.approx(one["eval_loss_response"], abs=1e-5)


def test_sharded_adapters_give_the_adapter_of_one(two):
    run = {"output": str(two / "lora"), "steps": 3}
    train(recipe(two, lora={"r": 4, "dropout": 0.0}, run=run))
    one, other = (load_file(two / name / "model" / ADAPTER) for name in ("lora", "sharded-lora"))
    assert_same(one, other)


KILLED = """
import os, signal, sys
from pathlib import Path
from test_train import dropout
from voidpad.training import checkpoint
from voidpad.training.train import train
write = checkpoint.Progress.write
def killed(progress, folder):
    write(progress, folder)
    if progress.update == 4:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.Progress.write = killed
train(dropout(Path(sys.argv[1]), "killed"))
"""


def dropout(folder, name):
    """An adapter with dropout, so that a restart must draw the same random numbers."""
    return lora(folder, name, lora={"dropout": 0.3}, run={"steps": 6, "log_every": 1})


def test_a_run_killed_while_it_saves_goes_on_to_the_same_bytes(folder):
    command = [sys.executable, "-c", KILLED, str(folder)]
    run = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, timeout=1200)
    assert run.returncode == -signal.SIGKILL, run.stderr
    output = folder / "killed"
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-2"]
    assert list((output / ".checkpoint-4.tmp").iterdir())  # what was being written
    with pytest.raises(ConfigError, match="already holds checkpoint-2"):
        train(dropout(folder, "killed"))
    assert train(dropout(folder, "killed"), resume=True).finished
    assert not list(output.glob(".*.tmp"))
    train(dropout(folder, "unharmed"))
    for name in ("model", "checkpoint-6"):
        one, two = ((folder / run / name / ADAPTER).read_bytes() for run in ("unharmed", "killed"))
        assert one == two
    one, two = (
        [
            {key: value for key, value in entry.items() if key not in ("seconds", "tokens_per_second")}
            for entry in entries(folder / run)
        ]
        for run in ("unharmed", "killed")
    )
    assert one == two
    assert [entry["step"] for entry in one] == [1, 2, 3, 4, 5, 6]
    timed = [entry["step"] for entry in entries(output) if "tokens_per_second" in entry]
    assert timed == [2, 4, 5, 6]  # the first update of a process is not timed


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_a_restart_is_exact(folder, optim):
    """With a schedule, whose length must be the same: `max_seconds` ends the first part."""
    parts = {"optim": {"name": optim, "warmup": 0.2, "decay": 0.5, "clip": 1.0}}
    runs = {name: {"output": str(folder / f"{optim}-{name}")} for name in ("once", "twice")}
    train(recipe(folder, **parts, run=runs["once"]))
    paused = train(recipe(folder, **parts, run=runs["twice"]), max_seconds=1e-9)
    assert (paused.finished, paused.steps) == (False, 1)
    train(recipe(folder, **parts, run=runs["twice"]), resume=True)
    one, two = ((folder / f"{optim}-{name}" / "model" / "model.safetensors") for name in runs)
    assert one.read_bytes() == two.read_bytes()


HELD = """
import sys, time
from pathlib import Path
from training_runs import recipe
from voidpad.training.train import train
def wait(run, entries):
    print(run.update, flush=True)
    time.sleep(0 if run.update < 1 else 60)
folder = Path(sys.argv[1])
train(recipe(folder, run={"output": str(folder / "shared")}), watch=wait)
"""


def test_two_processes_never_train_in_one_folder(folder):
    command = [sys.executable, "-c", HELD, str(folder)]
    process = subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "0\n"
        assert process.stdout.readline() == "1\n"
        for resume in (False, True):
            with pytest.raises(ConfigError, match=r"run\.output: another process"):
                train(recipe(folder, run={"output": str(folder / "shared")}), resume=resume)
    finally:
        process.kill()
        process.wait()
    assert train(recipe(folder, run={"output": str(folder / "shared")}), resume=True).finished


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "model", ".checkpoint-2.tmp"])
def test_links_in_a_run_folder_are_not_followed(folder, tmp_path, name):
    """What they point to stays as it was, whatever becomes of the run."""
    outside, output = tmp_path / "outside", tmp_path / "run"
    for path in (outside, output):
        path.mkdir()
    (outside / "precious").write_text('{"step": 99}\n')
    is_file = name in (".lock", "metrics.jsonl")
    (output / name).symlink_to(outside / "precious" if is_file else outside)
    if name in ("metrics.jsonl", "model"):
        with pytest.raises(ConfigError, match=f"already holds {name}"):
            train(recipe(folder, run={"output": str(output), "steps": 2}))
    with suppress(ConfigError, WeightsError):
        train(recipe(folder, run={"output": str(output), "steps": 2}), resume=True)
    assert (outside / "precious").read_text() == '{"step": 99}\n'
    assert [path.name for path in outside.iterdir()] == ["precious"]


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_state_of_the_optimizer_is_one_error(folder, tmp_path, damage):
    run = {"output": str(tmp_path / "run"), "steps": 4, "save_every": 2, "keep": 2}
    train(recipe(folder, run={**run, "steps": 2}))
    state = tmp_path / "run" / "checkpoint-2" / "optimizer.pt"
    state.write_bytes(state.read_bytes()[:-900] if damage is None else damage)
    with pytest.raises(WeightsError, match=r"optimizer\.pt"):
        train(recipe(folder, run=run), resume=True)


def lora(folder, name, **parts):
    change = {
        "lora": {"r": 8, "alpha": 16, "dropout": 0.0},
        "run": {"output": str(folder / name), "steps": 3},
    }
    return recipe(folder, **{key: {**change.get(key, {}), **parts.get(key, {})} for key in {*change, *parts}})


CANVAS = {"canvas": 16, "block": 8, "steps": 16}


def answers(model):
    prompts = ["ab", "hello", "q: 7?"]
    return [result.tokens for result in model.generate(prompts, "void", raw=True, **CANVAS)]


def test_an_adapter_decodes_the_same_merged_and_not(folder):
    done = train(lora(folder, "adapter", optim={"lr": 2e-2}))
    model = load(str(folder / "start"), done.folder)
    assert model.card.padding == "void"
    apart = answers(model)
    assert apart != answers(load(str(folder / "start")))
    assert answers(load(done.folder)) == apart  # the adapter names its base
    assert answers(merge(model)) == apart


def test_a_module_that_is_not_there_is_no_target(folder):
    with pytest.raises(ConfigError, match=r"lora\.targets: .*'foo'"):
        train(lora(folder, "no-target", lora={"targets": ["q_proj", "foo"]}))


def test_a_second_adapter_on_top_of_one_is_refused(folder):
    """Its base would be merged weights that are saved nowhere."""
    first = str(train(lora(folder, "below")).folder)
    for model in ({"adapter": first}, {"name": first}):
        with pytest.raises(ConfigError, match=r"below.* is an adapter of"):
            Run(lora(folder, "above", model=model))
    whole = recipe(folder, model={"adapter": first}, run={"output": str(folder / "all-of-it"), "steps": 1})
    assert load(train(whole).folder).card.padding == "void"  # all weights train, so all are saved


def test_void_rows_train_in_embedding_and_head_and_nothing_else_of_them(folder):
    run = Run(lora(folder, "rows"))
    void, eos = run.model.roles.void, run.model.roles.eos
    finish(run)
    for after, before in zip(tables(merge(run.model).net), tables(load(folder / "start").net), strict=True):
        assert (after - before).abs().sum(1).nonzero().flatten().tolist() == [void]
        assert not torch.equal(after[void], before[eos])  # it started there and moved on


@pytest.mark.parametrize("rule", ["eos", "mean", "keep"])
def test_void_rows_start_as_asked(folder, rule):
    run = Run(recipe(folder, model={"init_void": rule}, run={"output": str(folder / "init")}))
    start = load(str(folder / "start"))
    eos, void = start.roles.eos, start.roles.void
    for ours, theirs in zip(tables(run.model.net), tables(start.net), strict=True):
        expected = {"eos": theirs[eos], "mean": theirs.mean(0), "keep": theirs[void]}[rule]
        assert torch.allclose(ours[void], expected, atol=1e-6)


def tables(net):
    return net.get_input_embeddings().weight, net.get_output_embeddings().weight


def test_the_authors_preset_trains_their_modules_and_no_rows(folder):
    values = recipe(folder, lora={}, run={"output": str(folder / "authors")}).model_dump(exclude_unset=True)
    run = Run(check({**values, "preset": "authors"}))
    names = {name for name, p in run.module.named_parameters() if p.requires_grad}
    parts = {name.split(".lora_")[0].split(".")[-1] for name in names}
    assert parts == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}


def test_training_lowers_the_loss_and_reports_its_parts(folder):
    train(
        recipe(
            folder,
            optim={"lr": 1e-2},
            run={"output": str(folder / "lower"), "steps": 40, "log_every": 10, "save_every": 20},
        )
    )
    logs = entries(folder / "lower")
    assert [log["step"] for log in logs] == [10, 20, 30, 40]
    for name in ("loss", "loss_response", "loss_padding"):  # where random answers end cannot be learnt
        assert logs[-1][name] < logs[0][name]
    assert logs[-1]["tokens"] > logs[0]["tokens"] > 0
    assert logs[-1]["epoch"] == 40 * 8 / 40
    assert "loss_eos" in logs[-1]


def test_pre_training_from_scratch_on_packed_rows(folder):
    parts = {
        "model": {
            "name": None,
            "scratch": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64},
            "tokenizer": str(folder / "start"),
        },
        "data": {"layout": "packed", "length": 24},
        "optim": {"name": "muon", "lr": 1e-2, "warmup": 0.1, "decay": 0.3, "clip": 1.0},
        "noise": {"stratified": True, "suffix": 0.2},
        "run": {"output": str(folder / "scratch"), "steps": 20, "log_every": 5, "export": "float16"},
    }
    done = train(recipe(folder, **parts))
    logs = entries(folder / "scratch")
    assert logs[-1]["loss"] < logs[0]["loss"]
    assert {t.dtype for t in load_file(done.folder / "model.safetensors").values()} == {torch.float16}
    assert read_card(done.folder).padding is None
    assert load(done.folder).generate("ab", "void", raw=True, **CANVAS)


def test_a_run_by_the_clock_pauses_and_ends(folder):
    run = {"output": str(folder / "clock"), "steps": None, "seconds": 3600.0, "log_every": 1}
    paused = train(recipe(folder, run=run), max_seconds=0.3)
    assert not paused.finished
    assert paused.folder.name == f"checkpoint-{paused.steps}"
    seconds = paused.seconds + 1.0  # however long the machine took so far, this is not over
    settings = recipe(folder, run={**run, "seconds": seconds})
    done = train(settings, resume=True)
    assert done.finished
    assert done.seconds >= seconds
    assert done.steps > paused.steps
    assert done.tokens > paused.tokens
    again = train(settings, resume=True)  # nothing left to do
    assert (again.folder, again.steps, again.tokens) == (done.folder, done.steps, done.tokens)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_keeps_the_last_good_checkpoint(folder, small_disk):
    settings = recipe(folder, run={"output": str(small_disk / "out"), "save_every": 1, "keep": 9, "steps": 9})
    with pytest.raises(WeightsError, match=r"^[^\n]*last good checkpoint is .*checkpoint-\d"):
        train(settings)
    kept = sorted((small_disk / "out").glob("checkpoint-*"))
    assert kept
    assert not list((small_disk / "out").glob(".*.tmp"))
    for checkpoint in kept:
        load(checkpoint)


def test_checkpoints_are_rotated_and_carry_the_card(folder, whole):
    kept = sorted(path.name for path in (folder / "whole").glob("checkpoint-*"))
    assert kept == ["checkpoint-4", "checkpoint-6"]
    card = read_card(folder / "whole" / "checkpoint-6")
    assert (card.family, card.padding, card.recipe["run"]["steps"]) == ("llada", "void", 6)
    assert card.roles == random_model().roles
    assert_same(load_file(folder / "whole" / "checkpoint-6" / "model.safetensors"), whole, 0)


def test_a_finished_run_is_not_trained_again(folder, whole):
    again = train(recipe(folder, run={"output": str(folder / "whole")}), resume=True)
    assert (again.folder, again.finished, again.steps) == (folder / "whole" / "model", True, 6)
    assert_same(weights(folder / "whole"), whole, 0)


def test_a_restart_with_another_recipe_is_refused(folder, whole):
    with pytest.raises(ConfigError, match=r"optim\.lr, run\.seed differ"):
        train(
            recipe(folder, optim={"lr": 1.0}, run={"output": str(folder / "whole"), "seed": 1}), resume=True
        )


def test_settings_and_data_that_do_not_fit(folder, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        train(recipe(folder, data={"path": "nowhere"}, run={"output": str(tmp_path)}))
    with pytest.raises(ConfigError, match="context"):
        train(recipe(folder, padding={"width": 500}, run={"output": str(tmp_path)}))
    with pytest.raises(DataError, match=r"padding\.width: 5 slots"):
        train(recipe(folder, padding={"width": 5}, run={"output": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"run\.report_to: 'json'"):
        train(recipe(folder, run={"output": str(tmp_path), "report_to": ["json"]}))
    with pytest.raises(RoleError, match=r"padding\.colours"):
        train(recipe(folder, padding={"policy": "rainbow", "colours": 9}, run={"output": str(tmp_path)}))


def test_the_command_trains_and_reports(folder, monkeypatch, capsys):
    from voidpad.commands.train import main

    words = ["--set", f"run.output={folder / 'command'}", "--set", "run.steps=2"]
    words += ["--set", "lora.r=2", "--set", 'lora.targets=["q_proj", "v_proj"]']
    monkeypatch.setattr(sys, "argv", ["train", str(folder / "recipe.toml"), *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for fact in ("device      cpu, float32 weights", "parameters  ", "40 examples, 5 steps per epoch"):
        assert fact in shown
    assert "length      2 steps (0.40 epochs)" in shown
    assert re.search(r"step 2/2  loss .* s, 0:00:00 left", shown)
    config = json.loads((folder / "command" / "model" / "adapter_config.json").read_text())
    assert (config["r"], sorted(config["target_modules"])) == (2, ["q_proj", "v_proj"])
    assert "finished after 2 steps" in shown


def test_held_out_examples_choose_the_best_checkpoint(folder):
    run = {"output": str(folder / "held"), "steps": 6, "save_every": 2, "keep": 1, "choose": "best"}
    parts = {"data": {"held_out": 7}, "optim": {"lr": 1.0}}  # the loss can only get worse
    one = Run(recipe(folder, **parts, run=run))
    assert (one.passes.rows.count, one.held_out.rows.count) == (33, 7)
    shown = {tuple(row) for rows in (one.passes.rows, one.held_out.rows) for row in texts(rows.host)}
    assert len(shown) == len(set(map(tuple, texts(data.read(folder / "data.safetensors").pairs))))
    train(recipe(folder, **parts, run={**run, "steps": 2}))
    done = train(recipe(folder, **parts, run=run), resume=True)
    logs = entries(folder / "held")
    losses = {log["step"]: log["eval_loss"] for log in logs if "eval_loss" in log}
    assert sorted(losses) == [2, 4, 6]
    assert all(log["epoch"] == log["step"] / 5 for log in logs)  # 33 examples, 8 an update
    best = min(losses, key=losses.get)
    assert done.best == folder / "held" / f"checkpoint-{best}"
    assert done.best_loss == losses[best]
    kept = {path.name for path in (folder / "held").glob("checkpoint-*")}
    assert kept == {"checkpoint-6", f"checkpoint-{best}"}
    assert best != 6
    assert_same(weights(folder / "held"), load_file(done.best / "model.safetensors"), 0)
    with pytest.raises(DataError, match=r"data\.held_out: 40 of only 40"):
        Run(recipe(folder, data={"held_out": 40}, run={"output": str(folder / "x")}))


def texts(pairs):
    return [pairs.tokens[a : a + n].tolist() for a, n in zip(pairs.start, pairs.size, strict=True)]


def test_the_held_out_loss_is_the_training_loss_of_the_same_rows(folder):
    """Measured twice it is the same number, and it is the mean over rows of the worked loss."""
    run = Run(recipe(folder, data={"held_out": 6}, run={"output": str(folder / "measured")}))
    first, again = run.evaluate(), run.evaluate()
    assert first == again
    total = 0.0
    for position in torch.arange(6).split(4):  # mini-batch by mini-batch
        for one in run.held_out.over(0, position):
            entropy = run.module.eval()(one.ids, one.where, one.label, packed=one.packed)
            total += len(position) * float((entropy * one.weight).sum().detach())
    assert first["eval_loss"] == pytest.approx(total / 6, rel=1e-6)


def test_quantized_weights_stay_frozen_under_lora(folder):
    """QLoRA: the base in 4 bits, an adapter in float32 that loads on the plain base as well."""
    run = {"output": str(folder / "quantized"), "steps": 20, "log_every": 5}
    parts = {"lora": {"r": 4, "dropout": 0.0}, "optim": {"lr": 1e-2}, "run": run}
    settings = recipe(folder, model={"quantize": "4bit"}, **parts)
    seen = []
    done = train(settings, watch=lambda run, entries: seen.append(run))
    plain = Run(recipe(folder, **{**parts, "run": {**run, "output": str(folder / "plain")}}))
    assert seen[0].model.parameters == plain.model.parameters
    assert sum(p.numel() for p in seen[0].parameters) == sum(p.numel() for p in plain.parameters)
    logs = entries(folder / "quantized")
    assert logs[-1]["loss"] < logs[0]["loss"]
    assert {t.dtype for t in load_file(done.folder / ADAPTER).values()} == {torch.float32}
    assert answers(load(str(folder / "start"), done.folder)) != answers(load(str(folder / "start")))
    with pytest.raises(ConfigError, match=r"model\.quantize needs \[lora\]"):
        recipe(folder, model={"quantize": "4bit"})


def test_a_starter_recipe_runs_as_its_first_lines_say(tmp_path, monkeypatch, capsys):
    """`train --init`, then the two commands that the new file names, on the built-in model."""
    import shlex

    from voidpad.commands.cli import main

    def voidpad(*words):
        monkeypatch.setattr(sys, "argv", ["voidpad", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        assert left.value.code == 0, shown.err
        return shown.out

    chats = [{"prompt": f"Tom has {k} cards.", "response": f"{k} + 2 = {k + 2}"} for k in range(16)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    path = tmp_path / "my.toml"
    voidpad("train", "--init", path)
    commands = [
        shlex.split(line[5:]) for line in path.read_text().splitlines() if re.match(r"# [12]\. ", line)
    ]
    assert [words[:2] for words in commands] == [["voidpad", "data"], ["voidpad", "train"]]
    assert "16" in voidpad(*commands[0][1:])
    shown = voidpad(*commands[1][1:], "--set", "run.report_to=[]")
    assert "finished after 2 steps" in shown
    assert load(tmp_path / "my" / "model").card.padding == "void"
