"""How the built-in models are trained and answered on a machine that is lent: with almost no training."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from studies.builtin.prepare import prepare
from studies.builtin.ship import ship
from studies.gpu.answers import groups
from voidpad.errors import DataError
from voidpad.models import load

CHECKOUT = Path(__file__).parents[1]


def test_processes_never_share_a_cell(tmp_path):
    """Recipes of one folder may have cells in common, one process writes a run at a time, and done is done."""

    def cell(name, block):
        return {"folder": f"cells/{name}", "model": "tiny", "method": "void", "plan": {"block": block}}

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
