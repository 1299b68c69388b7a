"""The built-in models' recipes, cells, decoding and judging, on a random network of the shipped vocabulary."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from voidpad import models
from voidpad.decode.plan import plan
from voidpad.errors import ConfigError
from voidpad.sandbox import Sandbox
from voidpad.tiny import outputs, score
from voidpad.tiny.outputs import Cell, Limits, decode, read_cells
from voidpad.tiny.tasks import CANVAS, TASKS, heldout
from voidpad.tiny.tokenizer import ROLES, tokenizer
from voidpad.training import config

RECIPES = Path(__file__).parents[1] / "recipes" / "tiny"
SETS = [("eos", "rainbow", "void"), ("from_base_eos", "from_base_rainbow", "from_base_void")]


@pytest.fixture(scope="module")
def model():
    bare = models.random_model("llada", vocab=len(tokenizer()), hidden=16, layers=1, heads=2, intermediate=16)
    return replace(bare, tokenizer=tokenizer(), roles=ROLES)


def cells(**fields):
    return [
        Cell("void", "none", "void", {"canvas": 32, **fields}),
        Cell("all", "none", "original", {"canvas": 32, **fields}),
    ]


@pytest.mark.parametrize("name", ["base", "instruct", *SETS[0], *SETS[1]])
def test_recipes_are_valid_and_fit_the_model(name):
    recipe = config.read(RECIPES / f"{name}.toml")
    scratch = config.read(RECIPES / "base.toml").model.scratch
    assert scratch.context >= 80 + CANVAS
    assert recipe.data.path == "runs/tiny/data.safetensors"


@pytest.mark.parametrize("names", SETS)
def test_fine_tunes_of_a_set_differ_in_padding_alone(names):
    found = [config.read(RECIPES / f"{name}.toml").model_dump() for name in names]
    for recipe, name in zip(found, names, strict=True):
        assert recipe["padding"].pop("policy") == name.removeprefix("from_base_")
        assert recipe["run"].pop("output") == f"runs/tiny/{name}"
    assert found[0] == found[1] == found[2]


def test_cells_are_expanded_over_blocks_that_divide_the_canvas():
    count, found = read_cells(RECIPES / "score.toml")
    assert count >= 128
    assert len(found) == len(set(map(repr, found)))
    for cell in found:
        built = plan(cell.plan, **cell.fields)
        assert built.block == cell.fields.get("block", 32)
    assert any("block" not in cell.fields for cell in found)  # left to the model's calibration


def test_a_cells_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_cells(tmp_path / "none.toml")


def test_every_cell_answers_every_problem_once(model):
    found = list(decode(model, cells(block=16), 2, limits=Limits(rows=3)))
    assert len(found) == 2 * len(TASKS) * 2
    assert len({(r["name"], r["task"], r["index"]) for r in found}) == len(found)
    assert all(r["passes_decode"] == 32 for r in found if r["name"] == "all")
    assert json.loads(json.dumps(found)) == found


def test_hidden_eos_changes_what_masked_slots_see(model):
    plain = [Cell("plain", "none", "original", {"canvas": 32, "block": 32})]
    hidden = [replace(plain[0], hide_eos=True)]
    seen = [
        sorted((r["task"], r["text"]) for r in decode(model, c, 1, limits=Limits())) for c in (plain, hidden)
    ]
    assert len(seen[0]) == len(seen[1]) == len(TASKS)
    with pytest.raises(ValueError, match="unpack"):
        list(decode(model, plain + hidden, 1, limits=Limits()))


def written(text, task, index, **extra):
    cell = {"name": "x", "model": "m", "plan": "original", "fields": {"canvas": 192}, "block": 192}
    costs = {
        "passes_decode": 192,
        "passes_probe": 0,
        "passes_shared": 0,
        "canvas": 192,
        "answer_tokens": len(text),
    }
    return (
        cell | costs | {"first": False, "hide_eos": False, "task": task, "index": index, "text": text} | extra
    )


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(weak=True) as found:
        yield found


def test_right_answers_are_judged_right_and_wrong_ones_wrong(sandbox):
    rng, records = Random(0), []
    for task in TASKS.values():
        for index, problem in enumerate(heldout(task.name, 3)):
            text = task.answer(problem, rng)
            records += [written(text, task.name, index), written(text[:-1], task.name, index)]
    right = score.judge(records, sandbox)
    assert right[::2] == [True] * 12
    assert not any(right[1::2])


def test_text_after_the_first_answer_counts_only_when_asked(sandbox):
    records = []
    for task in TASKS.values():
        text = task.answer(heldout(task.name, 1)[0], Random(1))
        records += [
            written(f"{text}\n#### 7\n    return (", task.name, 0, first=first) for first in (True, False)
        ]
    assert score.judge(records, sandbox) == [True, False] * 4


def test_summary_counts_passes_and_slots(sandbox):
    problem = heldout("tiny_steps", 1)[0]
    grown = {"plan": "void-expansion", "fields": {"canvas": 32, "limit": 192}, "block": 32, "canvas": 96}
    grown |= {"passes_decode": 50, "passes_probe": 3, "passes_shared": 1}
    records = [written(f"#### {problem.target}", "tiny_steps", 0), written("no", "tiny_steps", 0, **grown)]
    assert [score.token_passes(r) for r in records] == [192 * 192, 32 + 64 + 96 + 49 * 96]
    fixed, expansion = sorted(score.scores(records, sandbox), key=lambda cell: cell["plan"])
    assert (fixed["mean"], expansion["mean"]) == (1.0, 0.0)
    assert "| x | 192 | 100.0" in score.table([fixed, expansion])


def test_the_two_commands_meet(model, tmp_path, capsys):
    models.save(model, tmp_path / "net")
    listed = (
        f'problems = 1\n[[cell]]\nname = "a"\nmodel = "{tmp_path / "net"}"\nplan = "void"\nblock = [16]\n'
    )
    (tmp_path / "cells.toml").write_text(listed + "fields = { canvas = 16 }\n")
    outputs.main([str(tmp_path / "cells.toml"), "--out", str(tmp_path / "o.jsonl")])
    score.main([str(tmp_path / "o.jsonl"), "--out", str(tmp_path / "s.json"), "--weak-sandbox"])
    assert "| a | 16 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "s.json").read_text())[0]["problems"] == 4
