"""The built-in models' recipes, and what their tables need: hidden EOS, other graders, differences, slot-passes."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

from runs import drawn, write_run, write_sweep
from voidpad.builtin.tasks import CANVAS, heldout
from voidpad.builtin.tokenizer import ROLES, tokenizer
from voidpad.commands.cli import app
from voidpad.decode.plan import plan
from voidpad.engine.batching import Engine
from voidpad.engine.hide_eos import hidden_eos
from voidpad.errors import ConfigError
from voidpad.evaluate import AnswerRequest, RunFolder
from voidpad.evaluate.answer import Answering
from voidpad.experiments.report.layout import Methods
from voidpad.experiments.report.records import read as read_runs
from voidpad.experiments.report.report_metrics import METRICS, slot_passes
from voidpad.experiments.report.tables import build
from voidpad.experiments.sweep_recipe import cells, parse, read
from voidpad.models import load, random_model, save
from voidpad.recipes import find_recipe, shipped_recipes
from voidpad.training import recipe as recipes

SETS = [("eos", "rainbow", "void"), ("from_base_eos", "from_base_rainbow", "from_base_void")]


def training(name):
    return recipes.read(find_recipe(f"tiny/{name}", "train"))


@pytest.mark.parametrize("name", ["base", "instruct", *SETS[0], *SETS[1]])
def test_recipes_are_valid_and_fit_the_model(name):
    recipe = training(name)
    assert training("base").model.scratch.context >= 80 + CANVAS
    assert recipe.data.path == "runs/tiny/data.safetensors"


@pytest.mark.parametrize("names", SETS)
def test_fine_tunes_of_a_set_differ_in_padding_alone(names):
    found = [training(name).model_dump() for name in names]
    for recipe, name in zip(found, names, strict=True):
        assert recipe["padding"].pop("policy") == name.removeprefix("from_base_")
        assert recipe["run"].pop("output") == f"runs/tiny/{name}"
    assert found[0] == found[1] == found[2]


# Recipes by name


def test_recipes_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("paper/llada-8b-instruct-void", "train").is_file()
    assert find_recipe("tiny-table1", "sweep").is_file()
    mine = tmp_path / "tiny-table1"
    mine.write_text("")
    assert find_recipe("tiny-table1", "sweep") == Path("tiny-table1")  # a file of the user's comes first
    with pytest.raises(
        ConfigError, match=r"no sweep recipe of that name; did you mean tiny-table3\? `voidpad"
    ):
        find_recipe("tiny-tabel3.toml", "sweep")
    with pytest.raises(ConfigError, match="tiny-table3: is a sweep recipe; use `voidpad sweep tiny-table3`"):
        find_recipe("tiny-table3", "train")
    with pytest.raises(ConfigError, match="tiny/void: is a train recipe; use `voidpad train tiny/void`"):
        find_recipe("tiny/void", "sweep")
    with pytest.raises(ConfigError, match="no train recipe of that name"):
        find_recipe("nothing-like-it", "train")


def test_the_command_lists_every_recipe_with_a_line():
    shown = CliRunner().invoke(app, ["recipes"], env={"COLUMNS": "200"}).output
    names = [recipe.name for kind in ("train", "sweep") for recipe in shipped_recipes(kind)]
    assert len(names) > 50
    lines = {
        line.split()[2]: line.split(None, 3)[3].strip()
        for line in shown.splitlines()[1:]
        if len(line.split()) > 3
    }
    assert set(names) <= lines.keys()
    assert lines["tiny-table1"] == "Fixed canvas: score and NFE by block size"
    assert lines["tiny/void"].startswith("tiny-void: LoRA fine-tune of tiny-instruct")
    path = CliRunner().invoke(app, ["recipes", "--path", "tiny-table1"]).output.strip()
    assert Path(path) == find_recipe("tiny-table1", "sweep")
    only = CliRunner().invoke(app, ["recipes", "sweep"]).output
    assert "voidpad train" not in only


# What the built-in tables need


@pytest.fixture(scope="module")
def model():
    bare = random_model("llada", vocab=len(tokenizer()), hidden=16, layers=1, heads=2, intermediate=16)
    return replace(bare, tokenizer=tokenizer(), roles=ROLES)


def test_hidden_eos_is_the_interventions_own_attention_mask():
    tuned = load("tiny-instruct")
    decoding = tuned.plan("original", canvas=64, block=64)
    request = AnswerRequest(name="a", prompt=heldout("tiny_expr", 1)[0].prompt)
    hidden, plain = (
        [record for done in Answering(tuned, decoding, hide_eos=hide).run([request]) for record in done]
        for hide in (True, False)
    )
    engine = Engine(tuned.denoiser(forbid=hidden_eos), tuned.roles)
    (outcome,) = engine.run([tuned.encode(request.prompt)], decoding)
    assert hidden[0].ids == outcome.ids
    assert hidden[0].ids != plain[0].ids


def test_a_plan_that_does_not_cut_has_all_its_text_scored(model):
    requests = [AnswerRequest(name=f"a:{n}", prompt="Tom has 13 cards.") for n in range(12)]
    texts, ended = {}, {}
    for cut in (True, False):
        decoding = model.plan("original", canvas=32, block=32, temperature=9.0, stop="vanilla", cut=cut)
        for done in Answering(model, decoding).run(requests):
            texts[cut] = texts.get(cut, {}) | {record.name: record.output for record in done}
            ended |= {record.name: record.eos for record in done}
    assert 0 < sum(ended.values()) < len(requests)
    for name, eos in ended.items():
        assert texts[False][name].startswith(texts[True][name])
        assert (len(texts[False][name]) > len(texts[True][name])) == eos


def test_interventions_and_caches_exclude_each_other():
    group = {"model": "tiny-instruct", "plan": "original", "hide_eos": True, "cache": "dual"}
    raw = {"title": "t", "tasks": ["tiny_steps"], "group": [group]}
    with pytest.raises(ConfigError, match="hide_eos and cache='dual' exclude each other"):
        parse(raw, "r")


def test_rows_may_be_scored_by_another_grader(tmp_path):
    every = write_sweep(find_recipe("tiny-score", "sweep"), tmp_path, size=20)
    (source,) = read_runs(tmp_path / "tiny-score.sweep.json")
    firsts = {record.method for record in source.records if record.grader}
    assert firsts == set()  # these made-up runs have other graders
    banned = next(cell for cell in every if cell.method == "original, EOS banned")
    assert banned.grader == "first"
    (record,) = read_runs(write_run(banned, tmp_path))[0].records
    graded = record.graded("authors")
    assert graded.result["correct"] == sum(one["score"] for one in graded.examples)
    assert graded.result["correct"] < record.result["correct"] == sum(one["score"] for one in record.examples)


def test_every_approximate_row_is_set_against_its_exact_one(tmp_path):
    write_sweep(find_recipe("tiny-approximations", "sweep"), tmp_path, size=12)
    (source,) = read_runs(tmp_path / "tiny-approximations.sweep.json")
    table = build(Methods(title="t", exact=True), source.records)
    apart = {row.head: row.values[table.columns.index("against exact")] for row in table.rows}
    exact = {head for head, value in apart.items() if value.blank}
    assert exact == {("void", "16"), ("void", "32"), ("void", "192"), ("void-expansion", "32")}
    assert all(value.number is not None for head, value in apart.items() if head not in exact)
    names = {name for record in source.records for name in record.provenance["approximations"]}
    assert names == {
        "threshold", "factor", "entropy_bound", "trim", "prefix cache", "dual cache", "dual:2 cache", "dual:4 cache",
        "prompt:4 cache",
        "ahead:4 cache",
    }  # fmt: skip


def test_every_commit_rule_is_set_against_exact_decoding(tmp_path):
    """Also where a rule has several fields, such as the order of EB-Sampler or the threshold of LocalLeap."""
    write_sweep(find_recipe("tiny-commits", "sweep"), tmp_path, size=12)
    (source,) = read_runs(tmp_path / "tiny-commits.sweep.json")
    split = ("threshold", "entropy_bound", "entropy_order", "each_run")
    table = build(Methods(title="t", exact=True, split=split), source.records)
    apart = {row.head: row.values[table.columns.index("against exact")] for row in table.rows}
    assert len(apart) == 13
    assert [head[0] for head, value in apart.items() if value.blank] == ["exact"]
    assert all(value.number is not None for head, value in apart.items() if head[0] != "exact")


def test_the_difference_is_taken_problem_by_problem(tmp_path):
    def lost_one(cell, size):
        lucky = [0.0] * size
        return [0.99, *lucky[1:]] if "threshold" in cell.settings.fields else lucky

    group = {"model": "tiny-void", "plan": "void"}
    raw = {"title": "t", "tasks": ["tiny_steps"], "fields": {"canvas": 192, "block": 192}, "group": [
        {**group, "method": "exact"}, {**group, "method": "fast", "fields": {"threshold": 0.9}},
    ]}  # fmt: skip
    records = []
    for cell in cells(parse(raw, "r")):
        records += read_runs(write_run(cell, tmp_path, size=4, draw=lost_one))[0].records
    records = [replace(r, method="fast" if r.at["threshold"] else "exact") for r in records]
    table = build(Methods(title="t", exact=True), records)
    rows = {row.head[0]: dict(zip(table.columns, row.values, strict=True)) for row in table.rows}
    assert rows["exact"]["against exact"].blank
    value = rows["fast"]["against exact"]
    assert value.number == -25.0
    assert value.interval == pytest.approx((-25 - 42.4, -25 + 42.4), abs=0.05)
    assert rows["fast"]["mean"].number == 75.0
    alone = build(Methods(title="t", exact=True), [r for r in records if r.method == "fast"])
    assert alone.rows[0].values[1].number is None  # nothing to set it against
    assert not alone.rows[0].values[1].blank


def test_slot_passes_count_every_slot_of_every_pass(tmp_path):
    by_method = {cell.method: cell for cell in cells(read(find_recipe("tiny-score", "sweep")))}
    (fixed,) = read_runs(write_run(by_method["void"], tmp_path, draw=drawn))[0].records
    assert slot_passes(fixed) == fmean(one["canvas"] * one["passes_decode"] for one in fixed.examples)
    (grown,) = read_runs(write_run(by_method["void, expanding"], tmp_path, draw=drawn))[0].records
    example = grown.examples[0]
    assert (example["passes_probe"], example["passes_shared"]) == (3, 1)
    block = grown.at["block"]

    def by_hand(one):
        probes = [one["canvas"] - 2 * block, one["canvas"] - block, one["canvas"]]
        return sum(probes) + one["canvas"] * (one["passes_decode"] - 1)

    assert slot_passes(grown) == fmean(map(by_hand, grown.examples))
    (other,) = read_runs(write_run(by_method["daedal"], tmp_path))[0].records
    assert slot_passes(other) is None
    cached = replace(fixed, settings={**fixed.settings, "cache": "dual"})
    assert METRICS["slot_passes"].of(cached) is None


def test_a_sweep_runs_stage_by_stage(model, tmp_path):
    save(model, tmp_path / "net")
    recipe = tmp_path / "trial.toml"
    recipe.write_text(
        'title = "Trial"\ntasks = ["tiny_steps"]\nlimit = 2\nfields = {canvas = 16}\ngrid = {block = [8, 16]}\n'
        f'[[group]]\nmodel = "{tmp_path / "net"}"\nplan = "void"\n'
    )

    def sweep(stage):
        done = CliRunner().invoke(
            app, ["sweep", str(recipe), "--out", str(tmp_path / "out"), "--stage", stage]
        )
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    assert "next is `voidpad sweep" in sweep("prepare")
    folders = [RunFolder(path) for path in (tmp_path / "out" / "cells").iterdir()]
    assert [len(folder.requests) for folder in folders] == [2, 2]
    assert "--stage judge" in sweep("answer")
    assert [len(folder.journal.records) for folder in folders] == [2, 2]
    assert "complete" in sweep("judge")
    assert all(folder.complete for folder in folders)


def test_calibrated_rows_leave_their_fields_to_the_model():
    every = cells(read(find_recipe("tiny-score", "sweep")))
    assert any("block" not in cell.settings.fields for cell in every)
    for cell in every:
        assert plan(cell.settings.plan, **cell.settings.fields).block == cell.settings.fields.get("block", 32)
