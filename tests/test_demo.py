"""The built-in models do what the paper says: the demo's small set, with room for another machine's rounding."""

import json
import os
import shutil
import tomllib

import pytest

from studies.builtin.ship import ship
from voidpad import load
from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.commands import demo as command
from voidpad.commands.options import BuiltInFamily
from voidpad.errors import ConfigError, DataError
from voidpad.evaluate import Resources
from voidpad.experiments.report.frame import frame
from voidpad.experiments.sweep_recipe import cells, of_family, read
from voidpad.models import random_model, read_card, save
from voidpad.models.adapter import base_of
from voidpad.models.locate import ARMS, ASSETS, BUILT_IN, BUILT_IN_FAMILIES
from voidpad.recipes import find_recipe

RESOURCES = Resources(rows=16, allow_code_execution=True, workers=2)


def arms_of(folder, *rows, limit, tasks=tuple(TASKS)):
    """Some rows (method, block) of the demo's recipe, run as the demo runs them."""
    recipe = recipe_of(read(find_recipe("tiny-demo", "sweep")), *rows, limit=limit, tasks=tasks)
    command.run(recipe, folder, RESOURCES)
    return frame([folder])


def recipe_of(whole, *rows, limit, tasks):
    by_name = {group.method: group for group in whole.groups}
    groups = [by_name[name].model_copy(update={"grid": {"block": [block]}}) for name, block in rows]
    return whole.limited(limit).model_copy(update={"groups": groups, "tasks": list(tasks)})


@pytest.fixture(scope="module")
def demo_arms(tmp_path_factory):
    """The first two problems that the demo shows, with the three rows that its example takes."""
    rows = [("original", 32), ("original", CANVAS), ("void", CANVAS)]
    return arms_of(tmp_path_factory.mktemp("demo"), *rows, limit=2, tasks=["tiny_steps"])


def arm_of(rows, method, block=CANVAS):
    return rows[(rows["method"] == method) & (rows["plan.block"] == block)].mean(numeric_only=True)


def overflows(arm):
    return arm["score"] <= 50 and arm["answer"] <= 30 and arm["nfe"] >= 0.9 * CANVAS


def answers_in_full(arm):
    return arm["score"] >= 75 and arm["answer"] >= 40 and arm["nfe"] <= CANVAS / 2


def test_eos_padding_overflows_at_block_equal_to_the_canvas(demo_arms):
    assert overflows(arm_of(demo_arms, "original"))


def test_void_padding_answers_in_full_and_stops(demo_arms):
    assert answers_in_full(arm_of(demo_arms, "void"))


@pytest.mark.slow
def test_all_tasks_overflow_with_eos_padding_and_not_with_void(tmp_path):
    rows = arms_of(tmp_path, ("original", CANVAS), ("void", CANVAS), limit=1)
    assert overflows(arm_of(rows, "original"))
    assert answers_in_full(arm_of(rows, "void"))


def test_the_demo_shows_a_problem_that_the_original_loses_and_void_keeps(demo_arms):
    example = command.telling(demo_arms)
    assert list(example) == ["prompt", "original, block 32", "original, block 256", "void, block 256"]
    assert len(example["original, block 256"]) < len(example["void, block 256"])
    assert command.telling(demo_arms[demo_arms["plan.block"] == CANVAS]) == {}


def test_built_in_models_differ_in_padding_alone():
    named = {name: load(name) for name in ("tiny-instruct", "tiny-eos", "tiny-rainbow", "tiny-void")}
    recipes = [
        {**named[n].card.recipe, "padding": None, "run": None}
        for n in ("tiny-eos", "tiny-rainbow", "tiny-void")
    ]
    assert recipes[0] == recipes[1] == recipes[2]
    assert [model.card.padding for model in named.values()] == ["eos", "eos", "rainbow", "void"]
    assert len({model.roles for model in named.values()}) == 1


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("family", BUILT_IN_FAMILIES)
def test_recipes_are_those_of_the_shipped_weights(family, arm):
    """Everything but how long and with which seed, which docs/tiny.md tells, and where the files lay."""
    recipe = tomllib.loads(find_recipe(f"tiny/{arm}", "train").read_text(encoding="utf-8"))
    card = read_card(ASSETS / f"{BUILT_IN_FAMILIES[family]}-{arm}").recipe
    for section in recipe.keys() - {"data", "run"}:
        given = {
            name: value for name, value in recipe[section].items() if name != "name" or section != "model"
        }
        assert {name: card[section][name] for name in given} == given, section
    assert card["run"]["global_batch"] == recipe["run"]["global_batch"]


def test_the_families_of_the_commands_are_those_that_ship():
    assert list(BuiltInFamily) == list(BUILT_IN_FAMILIES)
    assert all((ASSETS / name).is_dir() for name in BUILT_IN)


def test_a_recipe_of_another_family_names_its_models():
    recipe = of_family(read(find_recipe("tiny-seeds", "sweep")), "dream")
    assert {group.model for group in recipe.groups} == {
        f"tiny-dream-{arm}" for arm in ARMS if arm != "void-gap"
    }
    assert {cell.model for cell in cells(recipe)} == {"tiny-dream"}
    assert recipe.title.endswith("(dream family)")
    where = read(find_recipe("tiny-where", "sweep"))
    both, one = (len(cells(of_family(where, family))) for family in ("dream", "llada"))
    assert (both, one) == (32, 24)  # some of its rows make sense for Dream's rules alone
    alone = where.model_copy(update={"groups": [group for group in where.groups if group.family]})
    with pytest.raises(ConfigError, match="family=llada: all rows of the recipe are for the other family"):
        of_family(alone, "llada")
    with pytest.raises(ConfigError, match="family=dream: the recipe names no built-in model"):
        of_family(read(find_recipe("paper-table1", "sweep")), "dream")


@pytest.mark.parametrize("family", BuiltInFamily)
def test_the_demo_shows_an_answer_that_matches_a_schema_and_a_filled_gap(family):
    shown = command.structured_and_filled(family, "cpu")
    json.loads(next(text for title, text in shown.items() if title.startswith("JSON")))
    assert next(text for title, text in shown.items() if title.startswith("the gap"))


def test_the_demo_writes_one_page_with_its_texts_and_says_how_long(voidpad, monkeypatch, tmp_path, demo_arms):
    """With the decodes of `demo_arms`: the whole demo takes minutes."""
    whole = read(find_recipe("tiny-demo", "sweep"))
    tried = recipe_of(whole, ("original", 32), ("original", CANVAS), limit=1, tasks=["tiny_steps"])
    monkeypatch.setattr("voidpad.experiments.sweep_recipe.of_family", lambda *_: tried)
    monkeypatch.setattr(
        command, "structured_and_filled", lambda *_: {"a text": "<img src=x onerror=alert(1)>"}
    )
    ran = voidpad(f"demo --problems 1 --report {tmp_path}/demo.html")
    assert ran.status == 0, ran.err
    assert "original" in ran.out
    assert "about three minutes" in ran.err
    page = (tmp_path / "demo.html").read_text()
    assert "&lt;img src=x" in page
    assert "<img src=x" not in page
    assert page.count("data:image/svg+xml") == 2
    assert os.listdir(tmp_path) == ["demo.html"]


def test_shipping_keeps_the_old_model_until_the_new_one_is_complete(tmp_path):
    assets, runs = tmp_path / "assets", tmp_path / "runs"
    old = assets / "tiny-instruct"
    old.mkdir(parents=True)
    (old / "model.safetensors").write_bytes(b"the old weights")
    with pytest.raises(DataError, match="train the stage instruct first"):
        ship(runs, "instruct", assets=assets)
    assert (old / "model.safetensors").read_bytes() == b"the old weights"
    save(random_model(), runs / "instruct" / "model")
    assert ship(runs, "instruct", assets=assets) == old
    assert (old / "model.safetensors").stat().st_size > 100
    assert json.loads((old / "config.json").read_text())["model_type"]
    assert [path.name for path in assets.iterdir()] == ["tiny-instruct"]


@pytest.mark.slow
def test_the_whole_demo(voidpad, tmp_path):
    ran = voidpad(f"demo --report {tmp_path}/demo.html")
    assert ran.status == 0, ran.err
    assert "JSON that the schema allows" in ran.out
    rows = [(name, block) for name in ("original", "void") for block in (32, CANVAS)]
    done = arms_of(tmp_path / "runs", *rows, limit=3)
    means = {(name, block): arm_of(done, name, block)["score"] for name, block in rows}
    assert means["original", 32] >= 75 >= 50 >= means["original", CANVAS]
    assert means["void", CANVAS] >= means["void", 32] - 10 >= 65
    assert command.telling(done)


def test_another_family_ships_under_its_own_name(tmp_path):
    shutil.copytree(ASSETS / "tiny-void", tmp_path / "void" / "model")
    target = ship(tmp_path, "void", name="tiny-dream", assets=tmp_path)
    assert target.name == "tiny-dream-void"
    assert base_of(target) == "tiny-dream-instruct"
    trained, shipped = (read_card(folder).calibration for folder in (ASSETS / "tiny-void", target))
    assert shipped["void-expansion"] == trained["void-expansion"]  # found by a calibration before shipping
    assert (target / "adapter_model.safetensors").read_bytes() == (
        ASSETS / "tiny-void" / "adapter_model.safetensors"
    ).read_bytes()
