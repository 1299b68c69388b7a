"""The paper's tables end to end on random checkpoints in the released layout, as its readers would run them."""

import re

import pytest

from studies.paper.measured import pairs
from studies.paper.numbers import FILE
from studies.paper.rehearse import commands, random_adapter, random_release, rehearse, stand_ins
from voidpad.commands.cli import app
from voidpad.experiments.report.frame import frame
from voidpad.experiments.sweep_recipe import cells, read, with_folders
from voidpad.models import DREAM, LLADA, load
from voidpad.recipes import find_recipe

FAMILIES = pytest.mark.parametrize("family", [LLADA, DREAM], ids=lambda family: family.name)


@pytest.fixture(scope="module")
def weights(data_dir, tmp_path_factory):
    """Releases and adapters that the tests of this module share; the rehearsal makes what is missing."""
    return tmp_path_factory.mktemp("rehearsal")


@FAMILIES
def test_a_random_release_loads_like_the_real_one(data_dir, tmp_path, family):
    folder = random_release(family, data_dir, tmp_path / "release")
    model = load(folder)
    assert model.family is family
    assert model.card.family == family.name
    assert load(folder).net.num_parameters() < 6_000_000
    template = "<|im_start|>assistant" if family is DREAM else "<|start_header_id|>assistant"
    ids = model.encode("How many?")
    assert template in model.tokenizer.decode(ids)
    [answer] = model.generate(["How many?"], "original", canvas=8, block=4)
    assert len(answer.ids) == 8
    tuned = load(folder, random_adapter(folder, tmp_path / "adapter", seed=1))
    assert tuned.roles == model.roles
    assert [one.ids for one in tuned.generate(["How many?"], "void", canvas=8, block=4)] != [answer.ids]


def check_said(said, folder, name, count):
    """The command ended with the estimate; returns how many published scores lie outside the measured intervals."""
    rows = frame([folder / f"{name}.sweep.json"])
    scores = [pair for pair in pairs(rows[rows["n"].notna()]) if pair.inside is not None]
    assert len(scores) >= count
    assert re.fullmatch(
        rf"Decoding all items of these {count} cells on this device: about [\d.]+ hours\.",
        said.splitlines()[-1],
    )
    return sum(not pair.inside for pair in scores)


@pytest.mark.slow
def test_table_4_from_random_weights(data_dir, all_layers, weights, capsys):
    """Adaptive lengths, adapters, Dream's own tokenizer, four benchmarks, graders and sandbox."""
    took = rehearse(["paper-table4"], data_dir, weights, "--limit", "2", "--device", "cpu")
    # Of two answers none is right, so that published scores over 65.8 lie outside: GSM8K's.
    said = capsys.readouterr().out.partition("voidpad report")[0].rstrip()
    assert check_said(said, weights, "paper-table4", 12) >= 1
    assert took.keys() == {"paper-table4"}
    report = (weights / "paper-table4-report" / "report.md").read_text()
    assert "have not finished" not in report
    assert "| dream-7b-instruct |" in report


def table_1(cell):
    """HumanEval at the smallest block and at block = canvas."""
    last = (cell.model, cell.config.fields["block"]) == ("llada-8b-instruct", 512)
    return cell.task == "humaneval" and (cell.method == "void" or last)


def table_3(cell):
    """All but DAEDAL, which grows a random model's canvas to 2,048 slots, half an hour each, and rho-EOS once."""
    return cell.method != "daedal" and (cell.method != "rho-eos" or cell.task == "humaneval")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted", "limit", "count", "missing", "outside"),
    [("paper-table1", table_1, 1, 8, 64, 0), ("paper-table3", table_3, 2, 13, 7, 2)],
    ids=["table1", "table3"],
)
def test_cells_of_a_table_from_random_weights(
    data_dir, all_layers, weights, capsys, name, wanted, limit, count, missing, outside
):
    """The cells that were not asked for are named as missing."""
    recipe = read(find_recipe(name, "sweep"))
    places = stand_ins([recipe], data_dir, weights / "weights")
    named = {name: str(folder) for name, folder in places.items()}
    every = cells(with_folders(recipe.model_copy(update={"limit": limit}), named))
    chosen = [cell.id for cell in every if wanted(cell)]
    assert len(chosen) == count
    only = [word for one in chosen for word in ("--only", one)]
    options = ["--data", str(data_dir / "benchmarks"), "--limit", str(limit), "--device", "cpu", *only]
    sweep, report = commands(name, recipe, places, weights, *options)
    app(sweep, standalone_mode=False)
    assert check_said(capsys.readouterr().out, weights, name, count) >= outside
    app(report, standalone_mode=False)
    text = (weights / f"{name}-report" / "report.md").read_text()
    assert f"{name}: {missing} cells have not finished." in text
    for model in {cell.model for cell in every if wanted(cell)}:
        assert model in text


def test_every_table_of_the_page_has_its_command():
    """docs/reproduce.md has a command for each recipe of the paper, spelled so that it runs."""
    root = FILE.parents[2]
    page = (root / "docs" / "reproduce.md").read_text(encoding="utf-8")
    given = re.findall(r"^voidpad sweep (paper-[\w-]+) (.*)$", page, flags=re.MULTILINE)
    recipes = {path.stem for path in (root / "voidpad" / "recipes" / "sweeps").glob("paper-*.toml")}
    assert {name for name, _ in given} == recipes
