"""The built-in models do what the paper says: the demo's small set, with room for another machine's rounding."""

import html.parser
import json
from dataclasses import replace

import pytest

from studies.builtin.ship import ship
from voidpad import load
from voidpad.builtin.results import shipped_results
from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.commands import demo as command
from voidpad.errors import DataError
from voidpad.evaluate import Resources
from voidpad.experiments.sweep_recipe import read
from voidpad.models import random_model, save
from voidpad.recipes import find_recipe

RESOURCES = Resources(rows=16, allow_code_execution=True, workers=2)


def recipe(*methods, limit, block=None):
    """The demo's recipe with some of its rows."""
    whole = read(find_recipe("tiny-demo", "sweep"))
    groups = [group for group in whole.groups if group.method in methods]
    if block:
        groups = [group.model_copy(update={"grid": {"block": [block]}}) for group in groups]
    return whole.model_copy(update={"groups": groups, "limit": limit})


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    wanted = recipe("original", "void", limit=1, block=CANVAS)
    folder = tmp_path_factory.mktemp("demo")
    return {arm.name: arm for arm in command.run(wanted, folder, RESOURCES)}


def test_eos_padding_overflows_at_block_equal_to_the_canvas(arms):
    arm = arms["original"]
    assert arm.mean <= 0.5
    assert arm.average("answer_tokens") <= 30
    assert arm.average("passes_decode") >= 0.9 * CANVAS


def test_void_padding_answers_in_full_and_stops(arms):
    arm = arms["void"]
    assert arm.mean >= 0.75
    assert arm.average("answer_tokens") >= 40
    assert arm.average("passes_decode") <= CANVAS / 2


def test_the_demo_prints_what_the_readme_shows(arms):
    """The first problem of the README, word for word."""
    shown = {arm.name: arm.examples[0] for arm in arms.values()}
    assert shown["void"]["prompt"].splitlines()[0] == "Tom has 13 cards."
    assert shown["original"]["output"] == "#### 84"
    assert shown["void"]["output"].splitlines() == [
        "(1) 13 * 5 = 65, so now Ben has 65 shells.",
        "(2) 65 + 21 = 86, so now Ben has 86 shells.",
        "(3) 86 - 42 = 44, so now Ben has 44 shells.",
        "(4) 44 * 2 = 88, so now Ben has 88 shells.",
        "#### 88",
    ]


def test_the_example_shows_what_the_original_loses_and_void_keeps(arms):
    small = replace(
        arms["void"], name="original", block=32
    )  # right answers under the name of the small block
    told = command.telling([small, *arms.values()])
    assert list(told) == ["prompt", "original, block 32", "original, block 192", "void, block 192"]
    assert told["original, block 192"] == "#### 84"
    assert command.telling(list(arms.values())) is None


def test_built_in_models_differ_in_padding_alone():
    named = {name: load(name) for name in ("tiny-instruct", "tiny-eos", "tiny-rainbow", "tiny-void")}
    recipes = [
        {**named[n].card.recipe, "padding": None, "run": None}
        for n in ("tiny-eos", "tiny-rainbow", "tiny-void")
    ]
    assert recipes[0] == recipes[1] == recipes[2]
    assert [model.card.padding for model in named.values()] == ["eos", "eos", "rainbow", "void"]
    assert len({model.roles for model in named.values()}) == 1


def test_shipped_results_meet_the_targets():
    known = {key: cell["mean"] for key, cell in shipped_results().items()}
    assert known["original / 32"] >= 0.85
    assert known["void / 32"] >= max(0.85, known["original / 32"] - 0.02)
    for name in ("original", "eos control"):
        assert known[f"{name} / {CANVAS}"] <= 0.6 * known[f"{name} / 32"]
    assert known[f"void / {CANVAS}"] >= 0.95 * known["void / 32"]
    assert known[f"void, no ban / {CANVAS}"] <= 0.6 * known["void, no ban / 32"]
    assert known["void, expanding / 16"] >= known["void / 32"] - 0.02
    assert known["void, canvas 48 / 16"] <= known["void / 32"] - 0.2
    assert shipped_results()["void / 32"]["passes_decode"] <= CANVAS / 2


def test_the_recipe_of_the_shipped_results_has_exactly_their_rows():
    from voidpad.experiments.sweep_recipe import cells

    every = cells(read(find_recipe("tiny-score", "sweep")))
    rows = {f"{cell.method} / {cell.settings.fields.get('block', 16)}" for cell in every}
    assert rows == shipped_results().keys()
    assert {cell.task for cell in every} == TASKS.keys()
    assert {cell.settings.limit for cell in every} == {128}


def test_the_report_is_one_page_with_the_example_as_text(arms):
    text = command.page(list(arms.values()), {"prompt": "<img src=x onerror=alert(1)>"}, 1)
    tags = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))
    parser.feed(text)
    images = [attrs["src"] for tag, attrs in tags if tag == "img"]
    assert len(images) == 1
    assert images[0].startswith("data:image/png;base64,")


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
def test_the_whole_demo(tmp_path, capsys):
    command.demo(problems=3, full=False, report=tmp_path / "demo.html", device="cpu", weak_sandbox=False)
    assert "data:image/png" in (tmp_path / "demo.html").read_text()
    found = list(command.run(recipe("original", "void", limit=3), tmp_path / "runs", RESOURCES))
    means = {(arm.name, arm.block): arm.mean for arm in found}
    assert means["original", 32] >= 0.75 >= 0.5 >= means["original", CANVAS]
    assert means["void", CANVAS] >= means["void", 32] - 0.1 >= 0.65
    assert command.telling(found) is not None
