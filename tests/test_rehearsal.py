"""The paper's tables end to end on random checkpoints in the released layout, as its readers would run them."""

import re

import pytest

from studies.paper import published
from studies.paper.numbers import FILE
from studies.paper.rehearse import commands, random_adapter, random_release, rehearse, stand_ins
from voidpad.commands.cli import app
from voidpad.experiments.report.records import read as read_records
from voidpad.experiments.report.reference import pairs
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
    """The command ended with the scores that differ and with the estimate; returns how many differ."""
    records = [r for s in read_records(folder / f"{name}.sweep.json", published()) for r in s.records]
    scores = [pair for pair in pairs(records) if pair.inside is not None]
    outside = [f"  {pair}" for pair in scores if not pair.inside]
    assert len(scores) >= count
    lines = said.splitlines()
    start = lines.index(
        f"{len(scores) - len(outside)} of {len(scores)} published scores lie inside our 95 % intervals"
        + ("; outside:" if outside else ".")
    )
    assert lines[start + 1 : start + 1 + len(outside)] == outside
    assert re.fullmatch(
        rf"Decoding all items of these {count} cells on this device: about [\d.]+ hours\.",
        lines[start + 1 + len(outside)],
    )
    return len(outside)


@pytest.mark.slow
def test_tables_3_and_4_from_random_weights(data_dir, all_layers, weights, capsys):
    """Both families, adaptive lengths, adapters, Dream's own tokenizer, four benchmarks, graders and sandbox."""
    options = ("--limit", "2", "--device", "cpu")
    took = rehearse(["paper-table3", "paper-table4"], data_dir, weights, *options)
    said = capsys.readouterr().out
    third, fourth = re.split(r"(?m)^voidpad sweep ", said)[1:]
    # Of two answers none is right, so that published scores over 65.8 lie outside: GSM8K's.
    assert check_said(third, weights, "paper-table3", 20) >= 3
    assert check_said(fourth, weights, "paper-table4", 12) >= 1
    assert took.keys() == {"paper-table3", "paper-table4"}
    for name, model in (("paper-table3", "LLaDA-8B-Instruct"), ("paper-table4", "Dream-7B-Instruct")):
        report = (weights / f"{name}-report" / "report.md").read_text()
        assert "have not finished" not in report
        assert f"| {model} |" in report
        assert "### Paper versus measured" in report


@pytest.mark.slow
def test_cells_of_table_1_from_random_weights(data_dir, all_layers, weights, capsys):
    """HumanEval at the smallest block and at block = canvas; the other cells are named as missing."""
    recipe = read(find_recipe("paper-table1", "sweep"))
    places = stand_ins([recipe], data_dir, weights / "weights")
    named = {name: str(folder) for name, folder in places.items()}
    chosen = [
        cell.id
        for cell in cells(with_folders(recipe.model_copy(update={"limit": 1}), named))
        if cell.task == "humaneval"
        and (
            cell.method == "void" or (cell.model, cell.settings.fields["block"]) == ("llada-8b-instruct", 512)
        )
    ]
    assert len(chosen) == 8
    only = [word for one in chosen for word in ("--only", one)]
    options = ["--data", str(data_dir / "benchmarks"), "--limit", "1", "--device", "cpu", *only]
    sweep, report = commands("paper-table1", recipe, places, weights, *options)
    app(sweep, standalone_mode=False)
    check_said(capsys.readouterr().out, weights, "paper-table1", 8)
    app(report, standalone_mode=False)
    text = (weights / "paper-table1-report" / "report.md").read_text()
    assert "paper-table1: 64 cells have not finished." in text
    assert "LLaDA-8B-Instruct" in text
    assert "Dream-7B-Instruct" in text


def test_every_table_of_the_page_has_its_command():
    """docs/reproduce.md has a command for each recipe of the paper, spelled so that it runs."""
    root = FILE.parents[2]
    page = (root / "docs" / "reproduce.md").read_text(encoding="utf-8")
    given = re.findall(r"^voidpad sweep (paper-[\w-]+) (.*)$", page, flags=re.MULTILINE)
    recipes = {path.stem for path in (root / "voidpad" / "recipes" / "sweeps").glob("paper-*.toml")}
    assert {name for name, _ in given} == recipes
