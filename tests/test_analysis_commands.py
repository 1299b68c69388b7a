"""`voidpad analyze` on checkpoints of both families: files, numbers, pictures, and what bad input gets."""

import csv
import json
from pathlib import Path

import pytest
import torch

from voidpad.builtin.tasks import CANVAS
from voidpad.commands.cli import app
from voidpad.errors import ConfigError, DataError
from voidpad.models import random_model, save
from voidpad.training import prepared as data
from voidpad.training.prepared import Example, Pairs

BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for family in ("llada", "dream"):
        save(random_model(family, context=128, vocab=96), root / family)
    return root


@pytest.fixture
def voidpad(capsys):
    def run(*arguments: object) -> str:
        app([str(one) for one in arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.fixture
def talks(tmp_path):
    """Conversations of different lengths."""
    path = tmp_path / "talks.jsonl"
    turns = [("who is it", "me"), ("and then", "the end of it"), ("why", ""), ("a", "b c d e f")]
    rows = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in turns]
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return path


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


@BOTH
def test_eos_prior(family, folders, voidpad, talks, tmp_path):
    plot, table = tmp_path / "p.png", tmp_path / "p.csv"
    common = ("analyze", "eos-prior", "--model", folders / family, "--data", talks, "--least", 2)
    found = json.loads(voidpad(*common, "--batch", 2, "--plot", plot, "--csv", table, "--json"))
    assert found["examples"] == 4
    assert {gap["gap"].split()[0] for gap in found["gaps"]} == {"EOS", "VOID"}
    rows = list(csv.DictReader(table.open()))
    assert [int(row["slot"]) for row in rows] == list(range(1, len(rows) + 1))
    assert [float(row["q_eos"]) for row in rows] == [slot["q_eos"] for slot in found["slots"]]
    assert int(rows[0]["count"]) == 4
    assert is_png(plot)
    shown = voidpad(*common, "--canvas", 20)
    assert "EOS |q - p|" in shown
    assert "VOID |q - F|" in shown


def test_eos_prior_reads_prepared_data(folders, voidpad, tmp_path):
    roles = random_model("llada", vocab=96).roles
    path = tmp_path / "d.safetensors"
    rows = [Example([20, 21], [22] * n) for n in (1, 2, 3)] + [Example([20] * 120, [22] * 20)]
    data.write(path, Pairs.of(rows), roles)
    run = ("analyze", "eos-prior", "--model", folders / "llada", "--data", path, "--json", "--least", 1)
    found = json.loads(voidpad(*run, "--canvas", 5))
    assert found["examples"] == 3  # the long one does not fit the context
    assert [slot["p_eos"] for slot in found["slots"]] == pytest.approx([0, 1 / 3, 2 / 3, 1, 1], abs=1e-5)
    [gap] = [gap for gap in found["gaps"] if gap["gap"] == "EOS |p - F|"]
    assert (gap["mean"], gap["max"], gap["slots"]) == (0, 0, 5)
    assert json.loads(voidpad(*run, "--count", 2))["examples"] == 2


def test_eos_prior_refuses_foreign_data(folders, voidpad, tmp_path):
    path = tmp_path / "d.safetensors"
    other = random_model("llada", vocab=96).roles
    data.write(path, Pairs.of([Example([20], [22])]), type(other)(mask=50, eos=51))
    with pytest.raises(DataError, match="made for other token ids"):
        voidpad("analyze", "eos-prior", "--model", folders / "llada", "--data", path)
    with pytest.raises(ConfigError, match="no data; give examples with --data"):
        voidpad("analyze", "eos-prior", "--model", folders / "llada")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": [{"role": "user", "content": "alone"}]}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:1: no assistant message \(roles: user\)"):
        voidpad("analyze", "eos-prior", "--model", folders / "llada", "--data", bad)


@BOTH
def test_overflow(family, folders, voidpad, tmp_path):
    plot, table, traces = (tmp_path / name for name in ("o.png", "o.csv", "o.jsonl"))
    run = ("analyze", "overflow", "who is it", "why", "--model", folders / family, "--canvas", 16)
    found = json.loads(voidpad(*run, "--blocks", "8,16", "--plot", plot, "--json"))
    assert [rate["block"] for rate in found["blocks"]] == [8, 16]
    assert [one["block"] for one in found["trajectories"]] == [8, 16]
    assert found["verdict"].startswith(
        f"{found['blocks'][-1]['overflows']} of 2 answers overflow at block 16. "
    )
    assert "no usable VOID signal" in found["verdict"]
    assert len(found["answers"]) == 4
    assert is_png(plot)
    decode = ("generate", "why", "who is it", "--model", folders / family, "--canvas", 16)
    voidpad(*decode, "--block", 8, "--trace", traces)
    lines = voidpad("analyze", "overflow", "--trace", traces, "--csv", table, "--plot", plot)
    assert len(lines.splitlines()) == 3
    passes = sum(json.loads(line)["type"] == "pass" for line in traces.read_text().splitlines())
    assert len(list(csv.DictReader(table.open()))) == passes
    assert "answers overflow at block 16" in voidpad(*run, "--block", 16)


def test_overflow_judges_numbers(folders, voidpad, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "a", "answer": "so #### 1,234"}\n{"prompt": "b", "answer": 7}\n')
    run = ("analyze", "overflow", "--model", folders / "llada", "--file", path, "--canvas", 8, "--block", 8)
    found = json.loads(voidpad(*run, "--json"))
    assert [answer["right"] for answer in found["answers"]] == [False, False]
    assert "right" in voidpad(*run)


@pytest.mark.parametrize(("family", "queries"), [("llada", "masked"), ("dream", "all")])
def test_attention(family, queries, folders, voidpad, tmp_path):
    plot, file = tmp_path / "a.png", tmp_path / "q.jsonl"
    file.write_text('{"prompt": "a b", "answer": "7"}\n{"prompt": "c", "answer": "8"}\n')
    run = ("analyze", "attention", "--model", folders / family, "--queries", queries, "--file", file)
    found = json.loads(voidpad(*run, "--canvas", 12, "--plot", plot, "--json"))
    assert [arm["right"] for arm in found["arms"]] == [0, 0]
    assert [one["block"] for one in found["answers"]] == [12] * 4  # block = canvas unless told otherwise
    assert is_png(plot)
    assert [row["EOS"] for row in found["answers"]] == ["seen"] * 2 + ["hidden"] * 2
    assert "hidden" in voidpad(*run, "--canvas", 12)


def test_bad_sets(folders, voidpad):
    here = ("--model", folders / "llada")
    for arguments, named in {
        (): "prompt",
        ("a", "--blocks", "8,x"): "blocks=",
        ("a", "--canvas", 16, "--blocks", "5"): "block=5",
        ("a",): "context of 128",
    }.items():
        with pytest.raises(ConfigError, match=named):
            voidpad("analyze", "overflow", *arguments, *here)


def test_built_in_questions():
    from voidpad.builtin.tasks import heldout
    from voidpad.diagnose.questions import of_tasks, task_names, task_pairs

    asked = of_tasks(["steps", "tiny_complete"], 5)
    problems = heldout("tiny_steps", 3)
    assert asked[0].prompt == problems[0].prompt
    assert asked[0].right(f"#### {problems[0].target}")
    assert not asked[0].right("#### no")
    assert asked[1].right is None  # a program, and no sandbox to run it in
    with pytest.raises(ConfigError, match="tiny_nothing"):
        task_names(["nothing"])
    pairs = task_pairs(["expr"], 20)
    assert len(pairs) == 20
    assert torch.equal(pairs.tokens, task_pairs(["expr"], 20).tokens)


@pytest.mark.parametrize(
    ("name", "size", "grader"), [("paper", 512, "strict-match"), ("tiny", CANVAS, "first")]
)
def test_the_eos_ban_recipe(name, size, grader):
    """Specification 8.1: the whole canvas as one block, EOS banned, both score rules, the first answer graded."""
    from voidpad.decode.presets import plan
    from voidpad.decode.stop import Vanilla
    from voidpad.experiments.sweep_recipe import cells, read
    from voidpad.models import FAMILIES

    recipe = read(Path(__file__).parents[1] / "voidpad" / "recipes" / "sweeps" / f"{name}-eos-ban.toml")
    found = [cell.config for cell in cells(recipe)]
    plans = [plan(one.plan, defaults=FAMILIES["llada"].decoding, **one.fields) for one in found]
    assert [(one.ban, one.mute) for one in plans] == [((), ()), (("eos",), ()), (("eos",), ("eos",))]
    for one in plans:
        assert (one.length.canvas, one.block, one.steps, one.stop) == (size, size, size, Vanilla())
    assert {task for one in found for task in one.tasks} == {"gsm8k" if name == "paper" else "tiny_steps"}
    assert grader in [table.grader for table in recipe.tables]
