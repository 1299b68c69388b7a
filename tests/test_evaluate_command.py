"""`voidpad eval`: the run from a command line, and what wrong usage gets."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from voidpad.commands.eval import evaluate, shard_of
from voidpad.errors import ConfigError
from voidpad.evaluate import read_run
from voidpad.models import random_model, read_card, save
from voidpad.models.load import card_of

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
    words = [
        "--model",
        weights,
        "--plan",
        "void-expansion",
        "--canvas",
        "16",
        "--block",
        "8",
        "--window",
        "8",
    ]
    done = run(
        *words,
        "--canvas-limit",
        "32",
        "--tasks",
        "tiny_steps",
        "--limit",
        "3",
        "--out",
        str(tmp_path),
        "--json",
    )
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert results == read_run(tmp_path).results
    settings = read_run(tmp_path).config["settings"]
    assert settings["limit"] == 3
    assert settings["fields"] == {"canvas": 16, "block": 8, "window": 8, "limit": 32}
    assert settings["plan_resolved"]["limit"] == 32
    task = results["tasks"]["tiny_steps"]
    assert task["passes_probe"] >= 1
    assert task["passes_shared"] == 1
    assert all(one["canvas"] <= 32 for one in read_run(tmp_path).examples)


def test_the_table_names_the_share_of_the_test_set(weights, tmp_path):
    words = ["--model", weights, "--canvas", "16", "--block", "8", "--tasks", "tiny_expr", "--limit", "2"]
    done = run(*words, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "tiny_expr" in done.stdout
    assert "2/500" in done.stdout


@pytest.mark.parametrize(("padding", "plan"), [("void", "void"), ("eos", "original"), (None, "original")])
def test_the_plan_follows_the_padding_of_the_checkpoint(weights, tmp_path, padding, plan):
    shutil.copytree(weights, tmp_path / "model")
    replace(read_card(tmp_path / "model"), padding=padding).write(tmp_path / "model")
    words = ["--model", str(tmp_path / "model"), "--stage", "prepare", "--tasks", "tiny_expr", "--limit", "1"]
    done = run(*words, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert f"plan: {plan} (this checkpoint " in done.stderr
    assert read_run(tmp_path / "run").config["settings"]["plan"] == plan


def test_an_adapter_has_the_padding_of_its_own_card(weights, tmp_path):
    card = read_card(Path(weights))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": weights})
    )
    assert card_of(weights) == card_of(tmp_path / "adapter") == card
    replace(card, padding="void").write(tmp_path / "adapter")
    assert card_of(weights, tmp_path / "adapter").padding == card_of(tmp_path / "adapter").padding == "void"


def test_a_plan_must_be_named_where_the_model_is_not(tmp_path):
    done = run(
        "--model",
        "owner/absent",
        "--stage",
        "prepare",
        "--tasks",
        "tiny_expr",
        "--out",
        str(tmp_path / "run"),
    )
    assert "owner/absent is not on this machine, so its padding is unknown; name --plan" in str(
        done.exception
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "nothing"], "task 'nothing' is unknown"),
        (["--tasks", "tiny_write"], "pass --allow-code-execution"),
        (["--tasks", "tiny_steps", "--shard", "1-2"], "shard='1-2' is not of the form r/W"),
        (
            ["--tasks", "tiny_steps", "--block", "7", "--canvas", "16"],
            "canvas=16 is not a multiple of block=7",
        ),
        (["--tasks", "tiny_steps", "--cache", "all"], "cache='all' is unknown; use prefix or dual"),
        (["--tasks", "gsm8k", "--data", "/nowhere"], "no gsm8k_train.jsonl in /nowhere"),
    ],
)
def test_wrong_usage_is_one_line(weights, tmp_path, words, message):
    done = run("--model", weights, "--out", str(tmp_path / "run"), *words)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_approximations_are_named(weights, tmp_path):
    words = ["--model", weights, "--canvas", "16", "--block", "8", "--tasks", "tiny_expr", "--limit", "1"]
    done = run(*words, "--plan", "void", "--cache", "prefix", "--trim", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "approximate: prefix cache, trim" in done.stderr
    assert read_run(tmp_path).config["settings"]["cache"] == "prefix"


def test_shards():
    assert shard_of(None) is None
    assert shard_of("0/4") == (0, 4)
    with pytest.raises(ConfigError):
        shard_of("4")
