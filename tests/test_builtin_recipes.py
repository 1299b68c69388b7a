"""The built-in models' recipes, and what their tables need: hidden EOS, other graders, differences, slot-passes."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from runs import write_run, write_sweep
from voidpad.builtin.tasks import CANVAS, heldout
from voidpad.builtin.tokenizer import ROLES, tokenizer
from voidpad.commands.cli import app
from voidpad.decode.denoise import hidden_eos
from voidpad.engine.batching import Engine
from voidpad.errors import ConfigError
from voidpad.evaluate import AnswerRequest, EvalConfig
from voidpad.evaluate.answer import Answerer
from voidpad.experiments.report.frame import frame
from voidpad.experiments.report.layout import TableLayout
from voidpad.experiments.report.tables import build
from voidpad.experiments.sweep_recipe import cells, parse
from voidpad.models import load, random_model
from voidpad.recipes import find_recipe, shipped_recipes
from voidpad.training import recipe as recipes

ARMS = ("eos", "rainbow", "void")


def training(name):
    return recipes.read(find_recipe(f"tiny/{name}", "train"))


@pytest.mark.parametrize("name", ["base", "dream_base", "instruct", "instruct_more", *ARMS, "void-gap"])
def test_recipes_are_valid_and_fit_the_model(name):
    recipe = training(name)
    assert training("base").model.scratch.context >= 300 + recipe.padding.window[1]
    assert recipe.padding.window[1] >= CANVAS or recipe.data.layout == "packed"
    assert recipe.data.path == f"runs/tiny/{'gaps' if name == 'void-gap' else 'data'}.safetensors"


def test_adapters_differ_in_padding_alone_and_count_their_updates():
    """Arms that stop by the clock would have unequal numbers of updates."""
    found = [training(name).model_dump() for name in ARMS]
    for recipe, name in zip(found, ARMS, strict=True):
        assert recipe["padding"].pop("policy") == name
        assert recipe["run"].pop("output") == f"runs/tiny/{name}"
        assert recipe["run"]["steps"]
    assert found[0] == found[1] == found[2]


# Recipes by name


def test_recipes_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("paper/llada-8b-instruct-void", "train").is_file()
    assert find_recipe("tiny-table1", "sweep").is_file()
    (tmp_path / "tiny-table1").write_text("")
    assert find_recipe("tiny-table1", "sweep") == Path("tiny-table1")  # a file of the user's comes first
    for name, kind in (("tiny-tabel3.toml", "sweep"), ("tiny-table3", "train"), ("tiny/void", "sweep")):
        with pytest.raises(ConfigError, match=name):
            find_recipe(name, kind)


def test_the_command_lists_every_recipe(monkeypatch):
    monkeypatch.setattr("voidpad.commands.plans.out", Console(width=200, soft_wrap=True, highlight=False))
    shown = CliRunner().invoke(app, ["recipes"], env={"COLUMNS": "200"}).output
    names = {recipe.name for kind in ("train", "sweep") for recipe in shipped_recipes(kind)}
    assert names <= {*shown.split()}
    path = CliRunner().invoke(app, ["recipes", "--path", "tiny-table1"]).output.strip()
    assert Path(path) == find_recipe("tiny-table1", "sweep")


# What the built-in tables need


@pytest.fixture(scope="module")
def model():
    bare = random_model("llada", vocab=len(tokenizer()), hidden=16, layers=1, heads=2, intermediate=16)
    return replace(bare, tokenizer=tokenizer(), card=replace(bare.card, roles=ROLES))


def test_hidden_eos_is_the_interventions_own_attention_mask():
    tuned = load("tiny-instruct")
    decoding = tuned.plan("original", canvas=64, block=64)
    request = AnswerRequest(name="a", prompt=heldout("tiny_expr", 1)[0].prompt)
    hidden, plain = (
        [record for done in Answerer(tuned, decoding, config).run([request]) for record in done]
        for config in (EvalConfig(model="tiny-instruct", hide_eos=hide) for hide in (True, False))
    )
    engine = Engine(tuned.denoiser(forbid=hidden_eos), tuned.roles)
    (outcome,) = engine.run([tuned.encode(request.prompt)], decoding)
    assert hidden[0].ids == outcome.ids
    assert hidden[0].ids != plain[0].ids


def test_a_plan_that_does_not_cut_has_all_its_text_scored(model):
    requests = [AnswerRequest(name=f"a:{n}", prompt="Tom has 13 cards.") for n in range(6)]
    texts, ended = {}, {}
    for cut in (True, False):
        decoding = model.plan("original", canvas=32, block=32, temperature=9.0, stop="vanilla", cut=cut)
        for done in Answerer(model, decoding).run(requests):
            texts[cut] = texts.get(cut, {}) | {record.name: record.output for record in done}
            ended |= {record.name: record.eos for record in done}
    assert 0 < sum(ended.values()) < len(requests)
    for name, eos in ended.items():
        assert texts[False][name].startswith(texts[True][name])
        assert (len(texts[False][name]) > len(texts[True][name])) == eos


def test_interventions_and_caches_exclude_each_other():
    group = {"model": "tiny-instruct", "plan": "original", "hide_eos": True, "cache": "dual"}
    with pytest.raises(ConfigError, match="hide_eos and cache='dual' exclude each other"):
        parse({"title": "t", "tasks": ["tiny_steps"], "group": [group]}, "r")


EXACT = TableLayout(title="t", index=("method", "block"), exact=True)


def against_exact(table):
    """The cells of the column, by the names of the rows."""
    return {names: cells["against exact"] for names, cells in table.rows.items()}


def test_every_approximate_row_is_set_against_its_exact_one(tmp_path):
    write_sweep(find_recipe("tiny-approximations", "sweep"), tmp_path, size=12)
    rows = frame([tmp_path / "tiny-approximations.sweep.json"])
    apart = against_exact(build(EXACT, rows))
    exact = {head for head, value in apart.items() if value.blank}
    assert exact == {("void", "16"), ("void", "32"), ("void", "256"), ("void-expansion", "32")}
    assert all(value.number is not None for head, value in apart.items() if head not in exact)
    names = {name for facts in rows["provenance"] for name in facts["approximations"]}
    assert {"threshold", "factor", "entropy_bound", "trim", "dual:4 cache", "ahead:4 cache"} <= names


def test_the_difference_is_taken_problem_by_problem(tmp_path):
    def lost_one(cell, size):
        lucky = [0.0] * size
        return [0.99, *lucky[1:]] if "threshold" in cell.config.fields else lucky

    group = {"model": "tiny-void", "plan": "void"}
    raw = {"title": "t", "tasks": ["tiny_steps"], "fields": {"canvas": 256, "block": 256}, "group": [
        {**group, "method": "exact"}, {**group, "method": "fast", "fields": {"threshold": 0.9}},
    ]}  # fmt: skip
    runs = [write_run(cell, tmp_path, size=4, draw=lost_one) for cell in cells(parse(raw, "r"))]
    rows = frame(runs).assign(method=["exact", "fast"])
    table = build(EXACT, rows)
    apart = against_exact(table)
    assert apart["exact", "256"].blank
    value = apart["fast", "256"]
    assert value.number == -25.0
    assert value.interval == (-75.0, 0.0)
    assert table.rows["fast", "256"]["mean"].number == 75.0
