"""The demo, and the built-in models as they ship: recipes, families and files (what they do: test_shipped_weights)."""

import json
import os
import re
import shutil
import tomllib
from typing import get_args

import pytest

from studies.builtin.ship import ship
from voidpad.builtin.tasks import CANVAS
from voidpad.commands import demo as command
from voidpad.commands.options import BuiltInFamily
from voidpad.errors import ConfigError, DataError
from voidpad.evaluate import Resources
from voidpad.experiments.report.frame import frame
from voidpad.experiments.sweep_recipe import cells, of_family, read
from voidpad.files import read_json
from voidpad.models import random_model, read_card, save
from voidpad.models.locate import ARMS, ASSETS, BUILT_IN, BUILT_IN_FAMILIES
from voidpad.recipes import find_recipe


def small_recipe(*rows, **changes):
    """The demo's recipe with some of its rows (method, block)."""
    whole = read(find_recipe("tiny-demo", "sweep"))
    by_name = {group.method: group for group in whole.groups}
    groups = [by_name[name].model_copy(update={"grid": {"block": [block]}}) for name, block in rows]
    return whole.model_copy(update={"groups": groups, **changes})


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("family", BUILT_IN_FAMILIES)
def test_recipes_are_those_of_the_shipped_weights(family, arm):
    """Everything but how long and with which seed, which docs/tiny.md tells, and where the files lay."""
    stage = "instruct_more" if arm == "instruct" else arm  # the last of its stages
    recipe = tomllib.loads(find_recipe(f"tiny/{stage}", "train").read_text(encoding="utf-8"))
    card = read_card(ASSETS / f"{BUILT_IN_FAMILIES[family]}-{arm}").recipe
    for section in recipe.keys() - {"data", "run"}:
        given = {
            name: value for name, value in recipe[section].items() if name != "name" or section != "model"
        }
        assert {name: card[section][name] for name in given} == given, section
    assert card["run"]["global_batch"] == recipe["run"]["global_batch"]


def test_the_families_of_the_commands_are_those_that_ship():
    assert get_args(get_args(BuiltInFamily)[0]) == tuple(BUILT_IN_FAMILIES)
    assert all((ASSETS / name).is_dir() for name in BUILT_IN)


def test_a_recipe_of_another_family_names_its_models():
    recipe = of_family(read(find_recipe("tiny-seeds", "sweep")), "dream")
    named = {f"tiny-dream-{arm}" for arm in ARMS if arm != "void-gap"}
    assert {cell.config.model for cell in cells(recipe)} == named
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


@pytest.mark.parametrize("family", BUILT_IN_FAMILIES)
def test_the_demo_shows_an_answer_that_matches_a_schema_and_a_filled_gap(family):
    shown = command.structured_and_filled(family, "cpu")
    json.loads(next(text for title, text in shown.items() if title.startswith("JSON")))
    assert next(text for title, text in shown.items() if title.startswith("the gap"))


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_decoded(voidpad, monkeypatch):
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("decoding has begun"))
    ran = voidpad("demo --report /proc/demo.html")
    assert ran.status != 0
    assert "/proc" in ran.err


def test_the_demo_writes_one_page_with_its_texts_and_says_how_long(voidpad, monkeypatch, tmp_path):
    """With two short decodes: the whole demo takes minutes."""
    tried = small_recipe(("original", 32), ("original", 64), tasks=["tiny_steps"])
    groups = [one.model_copy(update={"fields": {"canvas": 64, "stop": "eos"}}) for one in tried.groups]
    tried = tried.model_copy(update={"groups": groups})
    monkeypatch.setattr("voidpad.experiments.sweep_recipe.of_family", lambda *_: tried)
    shown = {"a text": "<img src=x onerror=alert(1)>\n" + "word" * 40}
    monkeypatch.setattr(command, "structured_and_filled", lambda *_: shown)
    ran = voidpad(f"demo --problems 1 --report {tmp_path}/demo.html")
    assert ran.status == 0, ran.err
    assert "original" in ran.out
    assert "word" * 40 in re.sub(r"\W", "", ran.out), "a long line is wrapped, not cut"
    assert "minutes" in ran.err
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
    for title in ("original, block 256", "void, block 256", "JSON that the schema allows", "the gap, filled"):
        assert title in ran.out
    recipe = small_recipe(*((name, block) for name in ("original", "void") for block in (32, CANVAS)))
    resources = Resources(rows=16, allow_code_execution=True, workers=2)
    command.run(recipe, tmp_path / "runs", resources)
    means = frame([tmp_path / "runs"]).groupby(["method", "plan.block"])["score"].mean()
    assert means["original", 32] >= 75 >= 50 >= means["original", CANVAS]
    assert means["void", CANVAS] >= means["void", 32] - 10 >= 65


def test_another_family_ships_under_its_own_name(tmp_path):
    shutil.copytree(ASSETS / "tiny-void", tmp_path / "void" / "model")
    target = ship(tmp_path, "void", name="tiny-dream", assets=tmp_path)
    assert target.name == "tiny-dream-void"
    assert read_json(target / "adapter_config.json")["base_model_name_or_path"] == "tiny-dream-instruct"
    trained, shipped = (read_card(folder).calibration for folder in (ASSETS / "tiny-void", target))
    assert shipped["void-expansion"] == trained["void-expansion"]  # found by a calibration before shipping
    assert (target / "adapter_model.safetensors").read_bytes() == (
        ASSETS / "tiny-void" / "adapter_model.safetensors"
    ).read_bytes()
