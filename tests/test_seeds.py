"""Several seeds of the built-in models: the whole course of `studies.builtin.seeds`, with almost no training."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runs import write_run
from studies.builtin.prepare import prepare
from studies.builtin.targets import Target, difference
from studies.gpu.answers import groups
from voidpad.errors import DataError
from voidpad.experiments.sweep_recipe import cells, read
from voidpad.recipes import find_recipe

CHECKOUT = Path(__file__).parents[1]
RECIPES = (CHECKOUT / "voidpad" / "recipes" / "tiny").glob("*.toml")


def study(name, *args):
    command = [sys.executable, "-m", f"studies.{name}", *map(str, args)]
    return subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout


def seeds(*args):
    return study("builtin.seeds", *args)


@pytest.mark.parametrize("recipe", [path.stem for path in sorted(RECIPES)])
def test_the_stages_of_the_built_in_model_count_updates(recipe):
    """Arms that stop by the clock have unequal numbers of updates."""
    text = (CHECKOUT / "voidpad" / "recipes" / "tiny" / f"{recipe}.toml").read_text()
    assert "\nsteps = " in text
    assert "\nseconds = " not in text


def test_processes_never_share_a_cell(tmp_path):
    """Recipes of one folder may have cells in common, one process writes a run at a time, and done is done."""

    def cell(name, block):
        return {"folder": f"cells/{name}", "model": "tiny", "method": "void", "at": {"block": block}}

    for recipe, some in {
        "a": [cell("x", 32), cell("y", 32), cell("z", 8)],
        "b": [cell("y", 32), cell("w", 32)],
    }.items():
        (tmp_path / f"{recipe}.sweep.json").write_text(json.dumps({"cells": some}))
    a, b = [("a", ["x", "y"]), ("a", ["z"])], [("b", ["w"])]
    assert [found[1:] for found in groups([tmp_path])] == a + b
    assert [found[1:] for found in groups([tmp_path / "b.sweep.json"])] == [("b", ["y", "w"])]
    wanted = [tmp_path / "a.sweep.json", tmp_path]
    assert list(groups(wanted)) == [(tmp_path, *found) for found in a + b]
    with pytest.raises(DataError, match="holds no prepared sweep"):
        list(groups([tmp_path / "cells"]))
    for name, answers in {"x": "{}\n{}\n", "y": '{}\n{"torn'}.items():
        (tmp_path / "cells" / name).mkdir(parents=True)
        (tmp_path / "cells" / name / "requests.jsonl").write_text("{}\n{}\n")
        (tmp_path / "cells" / name / "progress.jsonl").write_text(answers)
    assert [found[1:] for found in groups([tmp_path])] == [("a", ["y"]), ("a", ["z"]), ("b", ["w"])]


@pytest.mark.parametrize(
    ("bounds", "seen", "met"),
    [
        ({"least": 95}, 95.0, True),
        ({"least": 95}, 94.99, False),
        ({"most": 50}, 50.0, True),
        ({"most": 50}, 50.01, False),
        ({"most": 60}, math.nan, False),
    ],
)
def test_a_target_is_met_at_its_bound(bounds, seen, met):
    assert Target("passes", seen, **bounds).row.endswith("| met |" if met else "| **missed** |")


def test_seeds_are_compared_problem_by_problem(tmp_path):
    """Answers are paired by task and index, whatever their order; what one side lacks does not count."""
    steps, expr, *_ = cells(read(find_recipe("tiny-seeds", "sweep")))

    def scored(side, cell, right):
        lucks = [0.1 if one else 0.9 for one in right]
        run = write_run(cell, tmp_path / side, size=len(right), draw=lambda *_: lucks)
        return SimpleNamespace(task=cell.task, path=run)

    first = [scored("first", steps, [1, 0, 1, 1]), scored("first", expr, [0])]
    second = [scored("second", expr, [1]), scored("second", steps, [1, 1, 0])]
    found = difference(first, second)
    assert (found["won"], found["lost"]) == (2, 1)
    assert found["points"] == 25  # two won and one lost of four


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_seeds_are_trained_scored_and_compared(family, tmp_path):
    """As with a GPU machine that has no harness: prepared before there are models, answered where they are made."""
    prepare(tmp_path / "data.safetensors", 64)
    prepare(tmp_path / "names.safetensors", 64, drill=True)
    out = tmp_path / "seeds"
    small = ["run.global_batch=2", "run.micro_batch=2", "run.compile=false"]
    options = [part for change in small for part in ("--set", change)]
    options += ["--data", tmp_path / "data.safetensors", "--updates", 1, "--prompts", 4]
    options += ["--names", tmp_path / "names.safetensors"]
    named = ["--family", family, "--seeds", "1,2", "--out", out]
    based = ["--family", family, "--seeds", "2", "--out", out, "--from-base"]
    seeds("sweep", *named, "--limit", 1, "--stage", "prepare")
    seeds("sweep", *based, "--limit", 1, "--stage", "prepare")
    assert f"{family}-2/void" in seeds("train", *named, *options)
    from_base = seeds("train", *based, *options)
    assert f"{family}-2/from_base_rainbow" in from_base
    assert "base/" not in from_base  # the base has been made
    for which in (named, based):
        assert f"{family}-" not in seeds("train", *which, *options)  # nothing is left to train
    answered = study("gpu.answers", *out.glob("*/sweep*"), "--together", 2, "--device", "cpu")
    # Two seeds of 14 methods at a block; from the base the control is the original.
    assert answered.count("4 cells") == answered.count("done") == 2 * 14 + 12
    for which in (named, based):
        seeds("sweep", *which, "--limit", 1, "--stage", "judge", "--allow-code-execution")
    table = seeds("table", out)
    assert f"| {family} | original / 192 | 2 | " in table
    assert f"| {family} | void, expanding / 16 | 2 | " in table
    assert f"| {family}, from the base | void, expanding / 16 | 1 | " in table
    met = study("builtin.targets", out)
    assert f"{family}, scored seeds: 2" in met
    assert f"{family}, from the base, scored seeds: 1" in met
    pairs = study("builtin.targets", out, "--pair", "eos control / 32", "void / 32")
    assert f"{family}-2/sweep: +" in pairs or f"{family}-2/sweep: -" in pairs
    assert f"{family}-2/sweep-from-base: no cells of 'eos control / 32'" in pairs
