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
from voidpad.errors import ConfigError, DataError, WeightsError
from voidpad.models import load, merge, random_model, read_card
from voidpad.training import prepared as data
from voidpad.training.recipe import check
from voidpad.training.setup import model_to_train
from voidpad.training.train import Run, train

ROOT = Path(__file__).parents[1]
PATHS = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
LORA = {"r": 4, "dropout": 0.0}
CANVAS = {"canvas": 16, "block": 8, "steps": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return materials(tmp_path_factory.mktemp("training"))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(folder):
    """One process, two mini-batches of four an update."""
    train(recipe(folder, "whole"))
    return weights(folder / "whole")


def weights(output, name="model"):
    (file,) = (output / name).glob("*.safetensors")
    return load_file(file)


def assert_same(one, two, tolerance=1e-6):
    assert one.keys() == two.keys()
    assert max((one[name] - two[name]).abs().max().item() for name in one) <= tolerance


def answers(model):
    prompts = ["ab", "hello", "q: 7?"]
    return [result.tokens for result in model.generate(prompts, "void", raw=True, **CANVAS)]


def tables(net):
    return net.get_input_embeddings().weight, net.get_output_embeddings().weight


def in_python(script, folder, *launcher):
    """A script in a process of its own, or in several by a launcher."""
    (folder / "script.py").write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(PATHS)}
    command = [sys.executable, *launcher, str(folder / "script.py"), str(folder)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1200)


# However a run is divided

TWO = """
import sys
from pathlib import Path
from torch.distributed.tensor import DTensor
from training_runs import recipe
from voidpad.training.train import Run, train
folder = Path(sys.argv[1])
train(recipe(folder, "two"))
run = Run(recipe(folder, "sharded", run={"fsdp": True}))
assert all(isinstance(p, DTensor) for p in run.module.parameters())
assert all(p.to_local().numel() < p.numel() for p in run.module.parameters())
for steps in (2, 4):
    train(recipe(folder, "sharded", run={"fsdp": True, "steps": steps}), resume=True)
assert train(recipe(folder, "paced", run={"steps": 3}), max_seconds=1000).steps == 3  # no multiple of log_every
for fsdp in (False, True):
    run = {"fsdp": fsdp, "steps": 2, "pass_tokens": 24}
    train(recipe(folder, f"held-{fsdp}", data={"held_out": 9}, run=run))
for steps in (1, 3):
    run = {"fsdp": True, "steps": steps}
    train(recipe(folder, "sharded-lora", lora={"r": 4, "dropout": 0.0}, run=run), resume=True)
"""


@pytest.fixture(scope="module")
def two(folder):
    """Two gloo processes, with sharded weights and without."""
    launcher = "-m torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0"
    run = in_python(TWO, folder, *launcher.split())
    assert run.returncode == 0, run.stderr
    return folder


def test_two_processes_give_the_weights_of_one(two, whole):
    assert_same(whole, weights(two / "two"))


def test_sharded_processes_give_the_weights_of_one(two, whole):
    # Gathered checkpoints load without sharding: one plain process ends what two sharded ones began.
    train(recipe(two, "sharded", run={"fsdp": True}), resume=True)
    assert_same(whole, weights(two / "sharded"))
    train(recipe(two, "lora", lora=LORA, run={"steps": 3}))
    assert_same(weights(two / "lora"), weights(two / "sharded-lora"))


def test_two_processes_measure_the_held_out_loss_of_one(two):
    """Nine rows in mini-batches of four: the processes have different numbers of them. One makes a single pass."""
    train(recipe(two, "held-one", data={"held_out": 9}, run={"steps": 2}))
    one, *others = (entries(two / name)[-1] for name in ("held-one", "held-False", "held-True"))
    for other in others:
        assert other == pytest.approx(one, abs=1e-5)


# Killed, stopped and resumed

KILLED = """
import os, signal, sys
from pathlib import Path
from test_train import dropout
from voidpad.models import Card
from voidpad.training.train import train
write = Card.write
def killed(card, folder):
    write(card, folder)
    if folder.name.startswith(".checkpoint-4."):
        os.kill(os.getpid(), signal.SIGKILL)
Card.write = killed
train(dropout(Path(sys.argv[1]), "killed"))
"""


def dropout(folder, name):
    """An adapter with dropout, so that a restart must draw the same random numbers."""
    return recipe(folder, name, lora={"r": 8, "alpha": 16, "dropout": 0.3}, run={"log_every": 1})


def test_a_run_killed_while_it_saves_goes_on_to_the_same_bytes(folder):
    run = in_python(KILLED, folder)
    assert run.returncode == -signal.SIGKILL, run.stderr
    output = folder / "killed"
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-2"]
    (draft,) = output.glob(".checkpoint-4.*")  # what was being written
    assert list(draft.iterdir())
    with pytest.raises(ConfigError, match="already holds checkpoint-2"):
        train(dropout(folder, "killed"))
    with (output / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # a line that was being written, too
    assert train(dropout(folder, "killed"), resume=True).finished
    assert not list(output.glob(".*.tmp"))
    train(dropout(folder, "unharmed"))
    for name in ("model", "checkpoint-6"):
        name = f"{name}/adapter_model.safetensors"
        assert (folder / "unharmed" / name).read_bytes() == (output / name).read_bytes()
    timed = [entry["step"] for entry in entries(output) if "tokens_per_second" in entry]
    assert timed == [2, 4, 5, 6]  # the first update of a process is not timed
    one, two = (
        [{**entry, "seconds": 0, "tokens_per_second": 0} for entry in entries(folder / name)]
        for name in ("unharmed", "killed")
    )
    assert one == two
    assert [entry["step"] for entry in one] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_a_restart_is_exact(folder, optim):
    """With a schedule, whose length must be the same: `max_seconds` ends the first part."""
    parts = {"optim": {"name": optim, "warmup": 0.2, "decay": 0.5, "clip": 1.0}}
    train(recipe(folder, f"{optim}-once", **parts))
    paused = train(recipe(folder, f"{optim}-twice", **parts), max_seconds=1e-9)
    assert (paused.finished, paused.steps) == (False, 1)
    train(recipe(folder, f"{optim}-twice", **parts), resume=True)
    one, two = (folder / f"{optim}-{name}/model/model.safetensors" for name in ("once", "twice"))
    assert one.read_bytes() == two.read_bytes()


def test_a_run_by_the_clock_pauses_and_ends(folder):
    run = {"steps": None, "seconds": 3600.0, "log_every": 1}
    paused = train(recipe(folder, "clock", run=run), max_seconds=0.1)
    assert not paused.finished
    assert paused.folder.name == f"checkpoint-{paused.steps}"
    seconds = paused.seconds + 0.3  # however long the machine took so far, this is not over
    settings = recipe(folder, "clock", run={**run, "seconds": seconds})
    done = train(settings, resume=True)
    assert done.finished
    assert done.seconds >= seconds
    assert done.steps > paused.steps
    assert done.tokens > paused.tokens
    again = train(settings, resume=True)  # nothing left to do
    assert (again.folder, again.steps, again.tokens) == (done.folder, done.steps, done.tokens)


def test_two_runs_never_train_in_one_folder(folder):
    def second(run, _):
        if run.update == 1:
            for resume in (False, True):
                with pytest.raises(ConfigError, match=r"run\.output: another process"):
                    train(recipe(folder, "shared"), resume=resume)

    assert train(recipe(folder, "shared"), watch=second).finished
    assert [entry["step"] for entry in entries(folder / "shared")] == [2, 4, 6]


@pytest.mark.parametrize("name", ["metrics.jsonl", "model", ".checkpoint-2.tmp"])
def test_links_in_a_run_folder_are_not_followed(folder, tmp_path, name):
    """What they point to stays as it was, whatever becomes of the run."""
    outside, output = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    output.mkdir()
    (outside / "precious").write_text('{"step": 99}\n')
    (output / name).symlink_to(outside / "precious" if name == "metrics.jsonl" else outside)
    with suppress(ConfigError, WeightsError):
        train(recipe(folder, output, run={"steps": 2}), resume=True)
    assert (outside / "precious").read_text() == '{"step": 99}\n'
    assert [path.name for path in outside.iterdir()] == ["precious"]


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "progress.json"])
def test_a_damaged_checkpoint_is_one_line(folder, tmp_path, name):
    train(recipe(folder, tmp_path, run={"steps": 2}))
    path = tmp_path / "checkpoint-2" / name
    whole = path.read_bytes()
    for damaged in (b"no archive", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises((ConfigError, WeightsError), match=rf"^[^\n]*{name}: [^\n]*$"):
            train(recipe(folder, tmp_path), resume=True)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_keeps_the_last_good_checkpoint(folder, small_disk):
    output = small_disk / "out"
    with pytest.raises(WeightsError, match=r"^[^\n]*last good checkpoint is .*checkpoint-\d"):
        train(recipe(folder, output, run={"save_every": 1, "keep": 9, "steps": 9}))
    assert not list(output.glob(".*.tmp"))
    kept = list(output.glob("checkpoint-*"))
    assert kept
    for checkpoint in kept:
        load(checkpoint)


def test_a_finished_run_has_its_last_checkpoints_and_is_not_trained_again(folder, whole):
    kept = sorted(path.name for path in (folder / "whole").glob("checkpoint-*"))
    assert kept == ["checkpoint-4", "checkpoint-6"]
    card = read_card(folder / "whole" / "checkpoint-6")
    assert (card.family, card.padding, card.recipe["run"]["steps"]) == ("llada", "void", 6)
    assert card.roles == random_model().roles
    assert_same(weights(folder / "whole", "checkpoint-6"), whole, 0)
    again = train(recipe(folder, "whole"), resume=True)
    assert (again.folder, again.finished, again.steps) == (folder / "whole" / "model", True, 6)
    with pytest.raises(ConfigError, match=r"optim\.lr, run\.seed differ"):
        train(recipe(folder, "whole", optim={"lr": 1.0}, run={"seed": 1}), resume=True)


# Networks and adapters


@pytest.mark.parametrize("parts", [{}, {"lora": LORA}])
def test_a_model_in_training_does_not_report_the_weights_it_started_from(folder, parts):
    settings = recipe(folder, **parts)
    model = model_to_train(settings, data.read(settings.data.path), torch.device("cpu"))
    before = model.fingerprint
    assert before != load(folder / "start").fingerprint
    with torch.no_grad():
        next(weight for weight in model.net.parameters() if weight.requires_grad).add_(1)
    assert model.fingerprint != before


def test_an_adapter_decodes_the_same_merged_and_not(folder):
    done = train(recipe(folder, "adapter", lora={**LORA, "alpha": 16}, optim={"lr": 2e-2}))
    model = load(str(folder / "start"), done.folder)
    assert model.card.padding == "void"
    apart = answers(model)
    assert apart != answers(load(str(folder / "start")))
    assert answers(load(done.folder)) == apart  # the adapter names its base
    assert answers(merge(model)) == apart
    with pytest.raises(ConfigError, match=r"adapter/model.* is an adapter"):
        Run(recipe(folder, "above", model={"name": str(done.folder)}))


def test_void_rows_train_in_embedding_and_head_and_nothing_else_of_them(folder):
    run = Run(recipe(folder, "rows", lora=LORA, run={"steps": 3}))
    void, eos = run.model.roles.void, run.model.roles.eos
    finish(run)
    for after, before in zip(tables(merge(run.model).net), tables(load(folder / "start").net), strict=True):
        assert (after - before).abs().sum(1).nonzero().flatten().tolist() == [void]
        assert not torch.equal(after[void], before[eos])  # it started there and moved on


@pytest.mark.parametrize("rule", ["eos", "mean", "keep"])
def test_void_rows_start_as_asked(folder, rule):
    run, start = Run(recipe(folder, model={"init_void": rule})), load(str(folder / "start"))
    eos, void = start.roles.eos, start.roles.void
    for ours, theirs in zip(tables(run.model.net), tables(start.net), strict=True):
        expected = {"eos": theirs[eos], "mean": theirs.mean(0), "keep": theirs[void]}[rule]
        assert torch.allclose(ours[void], expected, atol=1e-6)


def test_the_authors_preset_trains_their_modules_and_no_rows(folder):
    values = recipe(folder, lora={}).model_dump(exclude_unset=True)
    run = Run(check({**values, "preset": "authors"}))
    names = {name for name, p in run.module.named_parameters() if p.requires_grad}
    parts = {name.split(".lora_")[0].split(".")[-1] for name in names}
    assert parts == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}


def test_quantized_weights_stay_frozen_under_lora(folder):
    """QLoRA: the base in 4 bits, an adapter in float32 that loads on the plain base as well."""
    parts = {"lora": LORA, "optim": {"lr": 1e-2}, "run": {"steps": 10, "log_every": 5}}
    seen = []
    settings = recipe(folder, "quantized", model={"quantize": "4bit"}, **parts)
    done = train(settings, watch=lambda run, entries: seen.append(run))
    plain = Run(recipe(folder, "plain", **parts))
    assert seen[0].model.parameters == plain.model.parameters
    assert sum(p.numel() for p in seen[0].parameters) == sum(p.numel() for p in plain.parameters)
    logs = entries(folder / "quantized")
    assert logs[-1]["loss"] < logs[0]["loss"]
    assert {t.dtype for t in weights(folder / "quantized").values()} == {torch.float32}
    assert answers(load(str(folder / "start"), done.folder)) != answers(load(str(folder / "start")))


def test_pre_training_from_scratch_on_packed_rows(folder):
    scratch = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}
    settings = recipe(
        folder,
        "scratch",
        model={"name": None, "scratch": scratch, "tokenizer": str(folder / "start")},
        data={"layout": "packed", "length": 24},
        optim={"name": "muon", "lr": 1e-2, "warmup": 0.1, "decay": 0.3, "clip": 1.0},
        noise={"stratified": True, "suffix": 0.2},
        run={"steps": 20, "log_every": 5, "export": "float16"},
    )
    done = train(settings)
    logs = entries(folder / "scratch")
    assert logs[-1]["loss"] < logs[0]["loss"]
    assert {t.dtype for t in weights(folder / "scratch").values()} == {torch.float16}
    assert read_card(done.folder).padding is None
    assert load(done.folder).generate("ab", "void", raw=True, **CANVAS)


# What is measured and said


def test_training_lowers_the_loss_and_reports_its_parts(folder):
    train(recipe(folder, "lower", optim={"lr": 1e-2}, run={"steps": 40, "log_every": 10, "save_every": 20}))
    logs = entries(folder / "lower")
    assert [log["step"] for log in logs] == [10, 20, 30, 40]
    for name in ("loss", "loss_response", "loss_padding"):  # where random answers end cannot be learnt
        assert logs[-1][name] < logs[0][name]
    assert logs[-1]["tokens"] > logs[0]["tokens"] > 0
    assert logs[-1]["epoch"] == 40 * 8 / 40
    assert "loss_eos" in logs[-1]


def test_the_checkpoint_with_the_lowest_held_out_loss_is_kept(folder):
    parts = {"data": {"held_out": 7}, "optim": {"lr": 1.0}}  # the loss can only get worse
    run = {"keep": 1}
    one = Run(recipe(folder, "held", **parts, run=run))
    assert (one.passes.rows.count, one.held_out.rows.count) == (33, 7)
    shown = {text for rows in (one.passes.rows, one.held_out.rows) for text in texts(rows.host)}
    assert shown == texts(data.read(folder / "data.safetensors").pairs)
    train(recipe(folder, "held", **parts, run={**run, "steps": 2}))
    done = train(recipe(folder, "held", **parts, run=run), resume=True)
    logs = entries(folder / "held")
    losses = {log["step"]: log["eval_loss"] for log in logs if "eval_loss" in log}
    assert sorted(losses) == [2, 4, 6]
    assert all(log["epoch"] == log["step"] / 5 for log in logs)  # 33 examples, 8 an update
    best = min(losses, key=losses.get)
    assert best != 6
    assert (done.best, done.best_loss) == (folder / "held" / f"checkpoint-{best}", losses[best])
    kept = {path.name for path in (folder / "held").glob("checkpoint-*")}
    assert kept == {"checkpoint-6", f"checkpoint-{best}"}


def texts(pairs):
    return {tuple(pairs.tokens[a : a + n].tolist()) for a, n in zip(pairs.start, pairs.size, strict=True)}


@pytest.mark.parametrize(
    ("parts", "error", "named"),
    [
        ({"data": {"path": "nowhere"}}, DataError, "nowhere: no such file"),
        ({"data": {"held_out": 40}}, DataError, r"data\.held_out"),
        ({"padding": {"width": 500}}, ConfigError, "context"),
        ({"padding": {"width": 5}}, DataError, r"padding\.width"),
        ({"lora": {"targets": ["q_proj", "foo"]}}, ConfigError, r"lora\.targets: .*'foo'"),
        ({"run": {"report_to": ["json"]}}, ConfigError, r"run\.report_to: 'json'"),
    ],
)
def test_settings_and_data_that_do_not_fit(folder, tmp_path, parts, error, named):
    with pytest.raises(error, match=rf"^[^\n]*{named}[^\n]*$"):
        train(recipe(folder, tmp_path, **parts))


def test_the_command_trains_and_reports(folder, voidpad):
    words = f"--set run.output={folder}/command --set run.steps=2 --set lora.r=2"
    ran = voidpad(f"train {folder}/recipe.toml {words} --set", 'lora.targets=["q_proj", "v_proj"]')
    assert ran.status == 0, ran.err
    for fact in ("cpu, float32 weights", "40 examples, 5 steps per epoch", "2 steps (0.40 epochs)"):
        assert fact in ran.out
    assert re.search(r"step 2/2  loss .* s, 0:00:00 left", ran.out)
    assert "finished after 2 steps" in ran.out
    few = "--set run.steps=1 --set run.global_batch=64"
    one = voidpad(f"train {folder}/recipe.toml --set run.output={folder}/one {few}")
    assert "1 step per epoch" in one.out, one.err
    assert "finished after 1 step," in one.out
    config = json.loads((folder / "command" / "model" / "adapter_config.json").read_text())
    assert (config["r"], sorted(config["target_modules"])) == (2, ["q_proj", "v_proj"])


def test_a_starter_recipe_runs_as_its_first_lines_say(tmp_path, voidpad):
    """`train --init`, then the two commands that the new file names, on the built-in model."""
    chats = [{"prompt": f"Tom has {k} cards.", "response": f"{k} + 2 = {k + 2}"} for k in range(16)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    path = tmp_path / "my.toml"
    assert voidpad("train --init", path).status == 0
    prepare, training = re.findall(r"^# [12]\. voidpad (.*)$", path.read_text(), re.MULTILINE)
    assert (prepare.split()[0], training.split()[0]) == ("data", "train")
    assert "16" in voidpad(prepare).out
    assert "finished after 2 steps" in voidpad(training, "--set", "run.report_to=[]").out
    assert load(tmp_path / "my" / "model").card.padding == "void"
    assert (
        len(entries(tmp_path / "my")) == 2
    )  # saved, and so logged, at every tenth of the run: at every step
