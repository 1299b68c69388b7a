"""Recipes: refused with every fault named, and those in the repository parse and say what the paper says."""

import shutil
from pathlib import Path

import pytest

from voidpad.errors import ConfigError
from voidpad.models.locate import locate
from voidpad.training.padding import POLICIES
from voidpad.training.recipe import check, read, write_starter

ROOT = Path(__file__).parents[1] / "voidpad" / "recipes"
EVERY = sorted((ROOT / "paper").glob("*.toml"))
PAPER = [path for path in EVERY if not path.stem.endswith(("-authors", "-early-rainbow"))]
LEAST = {"model": {"name": "m"}, "data": {"path": "d"}, "run": {"output": "o", "steps": 1}}


def changed(**parts):
    return {name: {**LEAST.get(name, {}), **parts.get(name, {})} for name in {*LEAST, *parts}}


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_paper_recipes_say_what_the_paper_says(path):
    recipe = read(path)
    lora, optim, run = recipe.lora, recipe.optim, recipe.run
    assert (lora.r, lora.alpha, lora.dropout) == (32, 64, 0.05)
    assert (optim.name, optim.lr, optim.weight_decay) == ("adamw", 5e-5, 0.1)
    assert (optim.clip, optim.warmup, optim.decay) == (0, 0, 0)
    assert (run.global_batch, run.seed) == (48, 42)
    assert recipe.padding.longest_row_gets_eos
    epochs = {"instruct-rainbow": 1, "base-rainbow": 3, "base-void": 2, "base-eos": 2}
    budget = epochs.get("-".join(path.stem.split("-")[2:]))
    assert (run.steps, run.epochs) == (None if budget else 7000, budget)
    assert "--turns single" in path.read_text()  # conversations of one question, as in the paper


@pytest.mark.parametrize(
    "model", ["llada-8b-instruct", "llada-8b-base", "dream-7b-instruct", "dream-7b-base"]
)
def test_policies_of_a_model_differ_in_padding_name_and_budget_only(model):
    values = [read(ROOT / "paper" / f"{model}-{policy}.toml").model_dump() for policy in POLICIES]
    for recipe, policy in zip(values, POLICIES, strict=True):
        assert recipe["padding"].pop("policy") == policy
        for name in ("output", "steps", "epochs"):
            del recipe["run"][name]
    assert values[0] == values[1] == values[2]


def test_early_rainbow_and_the_authors_code_have_recipes_of_their_own():
    others = {path.stem: read(path) for path in EVERY if path not in PAPER}
    assert sorted(name.rsplit("-", 2)[1] for name in others) == ["early"] * 2 + ["void"] * 4
    for name, recipe in others.items():
        model, kind, _ = name.rsplit("-", 2)
        paper = read(ROOT / "paper" / f"{model}-{'rainbow' if kind == 'early' else kind}.toml")
        if kind == "early":
            assert (recipe.run.steps, paper.run.epochs, recipe.padding) == (7000, 1, paper.padding)
        else:
            assert (recipe.preset, recipe.model.init_void, recipe.lora.void_rows) == (
                "authors",
                "keep",
                False,
            )
            assert (recipe.run.steps, recipe.run.epochs) == (paper.run.steps, paper.run.epochs)


def test_all_faults_come_together_with_field_and_value():
    with pytest.raises(ConfigError) as caught:
        check(changed(optim={"lr": -1, "momentun": 0.9}, run={"micro_batch": 0}, padding={"policy": "blank"}))
    for part in ("optim.lr", "-1", "optim.momentun", "run.micro_batch", "padding.policy", "'blank'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"scratch": {}}}, "exactly one"),
        ({"run": {"epochs": 2.0}}, "exactly one of run.steps"),
        ({"run": {"global_batch": 10, "micro_batch": 4}}, "multiple of micro_batch"),
        ({"data": {"layout": "packed"}}, "data.length"),
        ({"optim": {"name": "muon"}, "lora": {}}, "full-parameter"),
        ({"optim": {"name": "muon"}, "run": {"fsdp": True}}, "whole matrices"),
        ({"lora": {"void_rows": False}}, "init_void must be"),
        ({"model": {"quantize": "4bit"}}, r"model\.quantize needs \[lora\]"),
        ({"padding": {"window": [9, 3]}}, "smaller number first"),
    ],
)
def test_combinations_that_cannot_work_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        check(changed(**parts))


def test_the_authors_preset_sets_what_their_code_does_and_explicit_settings_win():
    recipe = check({**changed(lora={}), "preset": "authors"})
    assert (recipe.padding.longest_row_gets_eos, recipe.padding.truncated_gets_eos) == (False, True)
    assert (recipe.model.init_void, recipe.lora.void_rows) == ("keep", False)
    explicit = check({**changed(padding={"truncated_gets_eos": False}), "preset": "authors"})
    assert not explicit.padding.truncated_gets_eos
    assert explicit.lora is None


def test_changes_from_the_command_line(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('[model]\nname = "m"\n[data]\npath = "d"\n[run]\noutput = "o"\nsteps = 5\n')
    recipe = read(path, ["run.steps=7", "padding.policy=rainbow", "optim.betas=[0.8, 0.9]", "lora.r=4"])
    assert (recipe.run.steps, recipe.padding.policy, recipe.optim.betas) == (7, "rainbow", (0.8, 0.9))
    assert recipe.lora.r == 4
    other = read(path, ["run.epochs=2.0"])  # a run has one length, and the one that is asked for counts
    assert (other.run.steps, other.run.epochs, other.run.seconds) == (None, 2.0, None)
    for change in ("run.steps", "run.steps.x=1"):
        with pytest.raises(ConfigError, match=change):
            read(path, [change])
    path.write_text("[model\n")
    for damaged in (path, tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match=damaged.name):
            read(damaged)


@pytest.mark.parametrize(
    ("model", "lr", "width"),
    [("tiny-instruct", 1e-3, "window"), ("GSAI-ML/LLaDA-8B-Instruct", 5e-5, "batch")],
)
def test_a_starter_fits_its_model(tmp_path, model, lr, width):
    write_starter(tmp_path / "my.toml", model=model)
    recipe = read(tmp_path / "my.toml")
    assert (recipe.optim.lr, recipe.padding.width) == (lr, width)
    assert recipe.run.save_every < 1  # often enough, however few steps there are
    with pytest.raises(ConfigError, match="save_every"):
        read(tmp_path / "my.toml", ["run.seconds=60"])


def test_a_starter_looks_at_a_folder_of_a_model(tmp_path):
    shutil.copytree(locate("tiny-instruct"), tmp_path / "mine")
    write_starter(tmp_path / "my.toml", model=str(tmp_path / "mine"))
    recipe = read(tmp_path / "my.toml")
    assert (recipe.optim.lr, recipe.padding.window) == (1e-3, (32, 272))
