"""`voidpad eval`: the run from a command line, and what wrong usage gets."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import typer
from typer.testing import CliRunner

from voidpad.commands.eval import evaluate
from voidpad.errors import ConfigError
from voidpad.evaluate import read_run
from voidpad.models import random_model, read_card, save

app = typer.Typer()
app.command("eval")(evaluate)
app.command("other")(lambda: None)  # with a second command, Typer keeps the first one's name


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    save(random_model("llada", vocab=110, context=1024, dtype=torch.float32), folder)
    return str(folder)


def run(*words: str):
    return CliRunner().invoke(app, ["eval", *words])


def test_a_run_and_its_json(weights, tmp_path):
    words = "--plan void-expansion --canvas 16 --block 8 --set window=8 --set limit=32 --tasks tiny_steps --limit 3"
    done = run("--model", weights, *words.split(), "--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert results == read_run(tmp_path).results
    stored = read_run(tmp_path)
    assert stored.config.limit == 3
    assert stored.config.fields == {"canvas": 16, "block": 8, "window": 8, "limit": 32}
    assert stored.head["plan"]["limit"] == 32
    task = results["tasks"]["tiny_steps"]
    assert task["passes_probe"] >= 1
    assert task["passes_shared"] == 1
    assert all(one["canvas"] <= 32 for one in read_run(tmp_path).examples)


@pytest.mark.parametrize(("padding", "plan"), [("void", "void"), ("eos", "original"), (None, "original")])
def test_the_plan_follows_the_padding_of_the_checkpoint(weights, tmp_path, padding, plan):
    shutil.copytree(weights, tmp_path / "model")
    replace(read_card(tmp_path / "model"), padding=padding).write(tmp_path / "model")
    words = ["--model", str(tmp_path / "model"), "--stage", "prepare", "--tasks", "tiny_expr", "--limit", "1"]
    done = run(*words, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert f"plan: {plan} (this checkpoint " in done.stderr
    assert read_run(tmp_path / "run").config.plan == plan


def test_a_plan_must_be_named_where_the_model_is_not(tmp_path):
    words = "--model owner/absent --stage prepare --tasks tiny_expr"
    done = run(*words.split(), "--out", str(tmp_path / "run"))
    assert isinstance(done.exception, ConfigError)
    assert "--plan" in str(done.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "nothing"], "task 'nothing'"),
        (["--tasks", "tiny_write"], "--allow-code-execution"),
        (["--tasks", "tiny_steps", "--set", "threshold"], "--set 'threshold'"),
        (["--tasks", "tiny_steps", "--set", "block=8", "--block", "8"], "block is given twice"),
        (["--tasks", "tiny_steps", "--set", "colour=red"], "colour"),
        (["--tasks", "tiny_steps", "--set", "parity=gpt"], "parity"),
        (["--tasks", "tiny_steps", "--shard", "1-2"], "shard='1-2'"),
        (["--tasks", "gsm8k", "--data", "/nowhere"], "no gsm8k_train.jsonl in /nowhere"),
    ],
)
def test_wrong_usage_is_one_line(weights, tmp_path, words, message):
    done = run("--model", weights, "--out", str(tmp_path / "run"), *words)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_the_table_names_the_share_of_the_test_set_and_approximations(weights, tmp_path):
    words = ["--model", weights, "--canvas", "16", "--block", "8", "--tasks", "tiny_expr", "--limit", "1"]
    done = run(*words, "--plan", "void", "--cache", "prefix", "--set", "trim=true", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "tiny_expr" in done.stdout
    assert "1/500" in done.stdout
    assert "approximate: prefix cache, trim" in done.stderr
