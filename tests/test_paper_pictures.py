"""The paper's figures redrawn beside the built-in models: drawn from finished sweeps, else left out by name."""

import pytest

from runs import write_run
from studies.pictures.paper_pictures import FAMILIES, FIGURES, Sweeps, Unfinished, draw
from voidpad.experiments.sweep import begin
from voidpad.experiments.sweep_recipe import of_family, read
from voidpad.recipes import find_recipe

SHORT = ("tiny-table3", "tiny-stress")
EVERY = (*SHORT, "tiny-appendix-blocks", "tiny-thresholds", "tiny-window", "tiny-start")
EVERY += ("tiny-expansion-block", "tiny-canvas")


def finished(out, recipes, *, size=4):
    """Sweeps of both families with made-up results."""
    for family in FAMILIES:
        for name in recipes:
            recipe = of_family(read(find_recipe(name, "sweep")), family)
            for cell in begin(recipe, name, out / family):
                write_run(cell, out / family, size=size)


def test_a_figure_is_drawn_from_finished_sweeps(tmp_path):
    finished(tmp_path / "runs", SHORT)
    assert draw(tmp_path / "runs", tmp_path / "img", ["short"]) == {}
    assert (tmp_path / "img" / "paper-short.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_without_its_sweep_is_left_out_and_named(tmp_path):
    finished(tmp_path / "runs", ["tiny-table3"])
    left_out = draw(tmp_path / "runs", tmp_path / "img", ["short", "canvas"])
    assert list(left_out) == ["short", "canvas"]
    assert "tiny-stress.sweep.json is missing" in left_out["short"]
    assert not list((tmp_path / "img").iterdir())


def test_a_cell_without_results_is_no_mean_of_the_others(tmp_path):
    recipe = read(find_recipe("tiny-stress", "sweep"))
    for cell in begin(recipe, "tiny-stress", tmp_path)[:-1]:  # the last cell has not run
        write_run(cell, tmp_path, size=4)
    sweeps = Sweeps(tmp_path)
    assert sweeps.point("tiny-stress", method="daedal").mean >= 0
    with pytest.raises(Unfinished, match="void-expansion"):
        sweeps.point("tiny-stress", method="void-expansion")


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path):
    finished(tmp_path / "runs", EVERY)
    assert draw(tmp_path / "runs", tmp_path / "img") == {}
    assert {path.name for path in (tmp_path / "img").iterdir()} == {f"paper-{name}.png" for name in FIGURES}
