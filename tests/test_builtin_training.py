"""How the built-in models are trained and answered on a machine that is lent: with almost no training."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from studies.builtin import results, score
from studies.builtin.prepare import prepare
from studies.builtin.ship import ship
from voidpad.models import load

CHECKOUT = Path(__file__).parents[1]


@pytest.mark.slow
def test_cells_are_answered_judged_and_kept(tmp_path, monkeypatch, capfd):
    """A piece that is there is not answered again; every kind of cell has its verdicts in one record."""
    monkeypatch.setattr(score, "KEPT", tmp_path / "kept.jsonl.gz")
    kinds = ("llada_void-gap_void-gap-bounds", "llada_void_void_tiny_json_32_threshold-0.9_one")
    asked = {"only": kinds, "count": 2, "commit": "none", "runs": None, "device": "cpu", "workers": 1}
    options = Namespace(out=tmp_path, fresh=False, **asked)
    for pieces in (4, 0):
        score.answer(options)
        assert f"{pieces} pieces" in capfd.readouterr().out
    score.judge(options)
    score.keep(options)
    score.keep(options)  # again: nothing is there twice
    assert len(score.kept()) == 2
    records = {one["task"]: one for one in score.kept()}
    assert records["tiny_json"]["matched"] == records["tiny_json"]["valid"] == [1, 1]
    assert len(records["tiny_fill"]["right"]) == len(records["tiny_fill"]["probes"]) == 2


def test_every_cell_has_a_name_of_its_own():
    every = {cell for cell, _ in score.cells()}
    assert len({cell.name for cell in every}) == len(every)


@pytest.mark.parametrize("page", results.PAGES)
def test_a_page_shows_the_tables_of_the_kept_verdicts(page):
    for name, shown in results.shown(results.DOCS / page).items():
        assert shown == "\n".join(results.TABLES[name]()) + "\n", (
            f"{name}: python -m studies.builtin.results --write"
        )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_family_is_trained_from_its_base_to_its_adapters_and_ships(family, tmp_path):
    prepare(tmp_path / "data.safetensors", 200)
    prepare(tmp_path / "gaps.safetensors", 100, void_gaps=True)
    command = [sys.executable, "-m", "studies.builtin.train", "--toy", "--scratch", "--families", family]
    command += ["--out", tmp_path / "runs", "--data", tmp_path / "data.safetensors"]
    command += ["--gaps", tmp_path / "gaps.safetensors"]
    made = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    assert made.count("/model: ") == 7
    assert not subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    for stage in ("instruct", "void", "void-gap"):
        shipped = ship(tmp_path / "runs" / family, stage, name="toy", assets=tmp_path / "assets")
        assert (shipped / "voidpad.json").is_file()
    model = load(str(tmp_path / "runs" / family / "void" / "model"))
    (result,) = model.generate("hello", "void", canvas=16, block=16)
    assert result.tokens
