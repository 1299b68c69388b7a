"""The built-in models' recipes, cells, decoding and judging, on a random network of the shipped vocabulary."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest

from voidpad import models
from voidpad.builtin import outputs, score
from voidpad.builtin.outputs import Cell, Limits, decode, kind, read_cells
from voidpad.builtin.tasks import CANVAS, TASKS, heldout
from voidpad.builtin.tokenizer import ROLES, tokenizer
from voidpad.decode.plan import plan
from voidpad.errors import ConfigError
from voidpad.sandbox import Sandbox
from voidpad.training import recipe as recipes

RECIPES = Path(__file__).parents[1] / "voidpad" / "recipes" / "tiny"
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
    recipe = recipes.read(RECIPES / f"{name}.toml")
    scratch = recipes.read(RECIPES / "base.toml").model.scratch
    assert scratch.context >= 80 + CANVAS
    assert recipe.data.path == "runs/tiny/data.safetensors"


@pytest.mark.parametrize("names", SETS)
def test_fine_tunes_of_a_set_differ_in_padding_alone(names):
    found = [recipes.read(RECIPES / f"{name}.toml").model_dump() for name in names]
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


def test_every_approximate_cell_has_its_exact_one():
    _, found = read_cells(RECIPES / "accelerated.toml")
    assert not any("," in cell.name for cell in found)
    fields = [{**asdict(cell), "block": 0, "accelerated": accelerated(cell)} for cell in found]
    exact = [score.baseline(cell) for cell in fields if not cell["accelerated"]]
    assert len(exact) == len(set(exact)) == 4
    assert {score.baseline(cell) for cell in fields} == set(exact)
    assert {name for cell in fields for name in cell["accelerated"]} == {
        "threshold", "factor", "trim", "prefix cache", "dual cache", "dual:2 cache", "dual:4 cache",
    }  # fmt: skip


def accelerated(cell):
    return [*([f"{cell.cache} cache"] if cell.cache else []), *plan(cell.plan, **cell.fields).approximations]


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


def test_a_cache_decodes_as_the_model_does_with_it(model):
    cell = Cell("cached", "none", "void", {"canvas": 32, "block": 16}, cache="dual")
    found = list(decode(model, [cell], 1, limits=Limits()))
    prompts = [heldout(record["task"], 1)[0].prompt for record in found]
    theirs = model.generate(prompts, "void", canvas=32, block=16, cache="dual")
    assert [r["text"] for r in found] == [result.text for result in theirs]
    assert all(r["accelerated"] == ["dual cache"] for r in found)


def test_engines_are_shared_where_the_network_is_the_same(model):
    exact, wide = cells(block=16)[0], cells(block=32)[0]
    assert kind(model, exact) == kind(model, wide)
    dual = [replace(cell, cache="dual") for cell in (exact, wide)]
    assert len({kind(model, cell) for cell in (exact, replace(exact, cache="prefix"), *dual)}) == 4
    with pytest.raises(ConfigError, match="cache='all' is unknown"):
        list(decode(model, [replace(exact, cache="all")], 1, limits=Limits()))
    with pytest.raises(ConfigError, match="'void': hide_eos and cache='dual' exclude each other"):
        replace(dual[0], hide_eos=True)


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


def test_approximate_cells_are_set_against_the_exact_one(sandbox):
    targets = [problem.target for problem in heldout("tiny_steps", 4)]
    fast = {"name": "fast", "fields": {"canvas": 192, "threshold": 0.9}, "accelerated": ["threshold"]}
    fast |= {"passes_decode": 48, "answer_tokens": 12}
    texts = [f"#### {target}" for target in targets]
    records = [written(text, "tiny_steps", index) for index, text in enumerate(texts)]
    records += [
        written("no" if index == 0 else text, "tiny_steps", index, **fast) for index, text in enumerate(texts)
    ]
    alone = written("no", "tiny_steps", 0, **fast, block=16)
    by_name = {(cell["name"], cell["block"]): cell for cell in score.scores([*records, alone], sandbox)}
    assert by_name["x", 192]["difference"] is None  # exact itself
    assert by_name["fast", 16]["difference"] is None  # nothing to set it against
    mean, half = by_name["fast", 192]["difference"]
    assert mean == -0.25
    assert half == pytest.approx(1.96 * (0.25 * 0.75 / 4) ** 0.5, rel=1e-3)
    assert by_name["fast", 192]["tokens_per_pass"] == 0.25
    assert "| -25.0 ± 42.4 | 75.0 [30.1, 95.4] |" in score.table([by_name["fast", 192]])


@pytest.mark.parametrize("extra", [{"cache": "dual"}, {"accelerated": ["trim"]}])
def test_slots_are_not_counted_where_they_change_from_pass_to_pass(extra):
    assert score.token_passes(written("", "tiny_steps", 0, **extra)) is None


def test_the_two_commands_meet(model, tmp_path, capsys):
    models.save(model, tmp_path / "net")
    cell = f'model = "{tmp_path / "net"}"\nplan = "void"\nblock = [16]\nfields = {{ canvas = 16 }}\n'
    named = "".join(f'[[cell]]\nname = "{name}"\n{cell}' for name in ("c", "a"))
    cached = f'[[cell]]\nname = "a, cached"\ncache = "dual"\n{cell}'
    (tmp_path / "cells.toml").write_text("problems = 1\n" + named + cached)
    command = [str(tmp_path / "cells.toml"), "--out", str(tmp_path / "o.jsonl")]
    outputs.main([*command, "--only", "a", "--only", "a, cached"])
    score.main([str(tmp_path / "o.jsonl"), "--out", str(tmp_path / "s.json"), "--weak-sandbox"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| a", "| a, cached"]
    cached, exact = sorted(json.loads((tmp_path / "s.json").read_text()), key=lambda c: c["cache"] is None)
    assert exact["problems"] == cached["problems"] == 4
    assert (exact["difference"], cached["difference"]) == (None, [0.0, 0.0])
    with pytest.raises(ConfigError, match="only=b: no such cell"):
        outputs.main([*command, "--only", "a", "--only", "b"])
