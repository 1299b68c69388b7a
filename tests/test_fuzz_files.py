"""Every kind of file that voidpad reads beside a model, damaged at random: it is read, or one line says why not.

Model folders have the same in test_hostile_folders.py. In `make test` each kind gets a few files, in `make test-slow`
hundreds; a failure names the seed that repeats it.
"""

import gzip
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fuzzing import (
    mutated_bytes,
    mutated_json,
    mutated_lines,
    mutated_tensors,
    mutated_toml,
    reads_or_says_why,
)
from runs import write_run
from stories import expansion
from voidpad.commands import analyze_inputs, prompts
from voidpad.diagnose import trace
from voidpad.diagnose.page.page import Named, page
from voidpad.errors import ConfigError
from voidpad.evaluate.folder import AnswerRequest, RunFolder, read_run
from voidpad.evaluate.journal import AnswerRecord
from voidpad.evaluate.tasks import benchmark_files
from voidpad.experiments import sweep_recipe
from voidpad.experiments.report.compare import compare_runs, compared_html, compared_markdown
from voidpad.experiments.report.pages import as_html, as_latex, as_markdown, report
from voidpad.experiments.report.published import read_published
from voidpad.experiments.sweep import begin, begun
from voidpad.recipes import find_recipe
from voidpad.roles import Roles
from voidpad.serve.access import read_access
from voidpad.training import chats, corpus, prepared, recipe
from voidpad.training.padding import Example, Pairs

Mutate = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Kind:
    """A file as it should be, how it is damaged, and what reads it."""

    name: str  # of the file; its ending may decide how it is read
    content: bytes
    mutate: Mutate
    read: Callable[[Path], object]


def of_json(draw: random.Random, data: bytes) -> bytes:
    return mutated_json(draw, data.decode())


def zipped(draw: random.Random, data: bytes) -> bytes:
    if draw.random() < 0.3:
        return mutated_bytes(draw, data)
    return gzip.compress(mutated_lines(draw, gzip.decompress(data)))


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


TURNS = [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Yes, two."}]
ASKED = TURNS[:1]  # what a model may be asked ends before its answer
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
ALPACA = {"instruction": "Add", "input": "1 2", "output": "3", "history": [["a", "b"]]}
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, TURNS[1]]}
PUBLISHED = b"""
[models.m]
hub = "a/b"
family = "llada"
title = "M"
[[sheet]]
id = "t"
source = "Table 1"
metric = "score"
model = "m"
levels = ["task", "method"]
across = "block"
columns = [8, 16]
summary = ["mean"]
settings = {canvas = 64}
[sheet.cells.gsm8k]
original = [1.0, 2.0, 1.5]
"""


def written(write: Callable[[Path], object], folder: Path) -> bytes:
    path = folder / "made"
    write(path)
    return path.read_bytes()


def in_folder(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Read a benchmark's file by the name it has in its folder."""
    return lambda path: read(path.parent)


def kinds(folder: Path) -> dict[str, Kind]:
    pairs = Pairs.of([Example([5, 6], [7, 8, 9], True), Example([5], [7], False)])
    made = written(lambda path: prepared.write(path, pairs, Roles(mask=0, eos=1, void=2)), folder)
    train = find_recipe("tiny/void", "train").read_bytes()
    sweep = find_recipe("tiny-demo", "sweep").read_bytes()
    told = written(lambda path: trace.write(path, [expansion("probs")]), folder)
    mbpp = {
        "task_id": 11,
        "text": "Add.",
        "code": "def f(): pass",
        "test_list": ["assert 1"],
        "test_setup_code": "",
    }
    human = {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n",
        "entry_point": "f",
        "test": "",
        "canonical_solution": "",
    }

    def shown(path: Path) -> None:
        page([Named(path.name, one) for one in trace.read(path)])

    def spoken(path: Path) -> None:
        list(chats.read(path, turns="every"))

    def measured(path: Path) -> None:
        corpus.stats(prepared.read(path))

    def asked(path: Path) -> None:
        prompts.gather([], file=path, messages=None)
        analyze_inputs.given_questions(None, file=path, count=9)

    return {
        "trace": Kind("t.jsonl", told, mutated_lines, shown),
        "training recipe": Kind("r.toml", train, mutated_toml, recipe.read),
        "sweep recipe": Kind("s.toml", sweep, mutated_toml, sweep_recipe.read),
        "published": Kind("p.toml", PUBLISHED, mutated_toml, lambda path: read_published(path).numbers),
        "chats": Kind("c.jsonl", lines({"messages": TURNS}, PARTS), mutated_lines, spoken),
        "ShareGPT": Kind("c.jsonl", lines(SHAREGPT, SHAREGPT), mutated_lines, spoken),
        "Alpaca": Kind("c.jsonl", lines(ALPACA, {"prompt": "a", "response": "b"}), mutated_lines, spoken),
        "array": Kind("c.json", json.dumps([SHAREGPT, ALPACA]).encode(), of_json, spoken),
        "prepared": Kind("d.safetensors", made, mutated_tensors, measured),
        "prompts": Kind("q.jsonl", lines({"prompt": "a"}, {"messages": ASKED}), mutated_lines, asked),
        "plain prompts": Kind("q.txt", b"one prompt\nanother\n", mutated_bytes, asked),
        "conversation": Kind(
            "m.json", json.dumps(ASKED).encode(), of_json, lambda path: prompts.gather([], file=None, messages=path)
        ),
        "gsm8k": Kind(
            "gsm8k_train.jsonl", lines({"question": "q", "answer": "#### 1"}), mutated_lines,
            lambda path: benchmark_files._read(path.parent, path.name, needs=("question", "answer")),
        ),
        "math500": Kind(
            "math500.jsonl", lines({"problem": "p", "answer": r"\boxed{1}"}), mutated_lines,
            in_folder("math500.jsonl", benchmark_files.math500),
        ),
        "mbpp": Kind("mbpp.jsonl", lines(mbpp), mutated_lines, in_folder("mbpp.jsonl", benchmark_files.mbpp)),
        "humaneval": Kind(
            "HumanEval.jsonl.gz", gzip.compress(lines(human)), zipped,
            in_folder("HumanEval.jsonl.gz", benchmark_files.humaneval),
        ),
        "API keys": Kind(
            "keys", b"secret-key-1\nsecret-key-2\n", mutated_bytes,
            lambda path: read_access("127.0.0.1", _private(path), no_auth=False),
        ),
    }  # fmt: skip


def _private(path: Path) -> Path:
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Kind]:
    return kinds(tmp_path_factory.mktemp("made"))


NAMES = (
    "trace", "training recipe", "sweep recipe", "published", "chats", "ShareGPT", "Alpaca", "array", "prepared",
    "prompts", "plain prompts", "conversation", "gsm8k", "math500", "mbpp", "humaneval", "API keys",
)  # fmt: skip


def fuzz(kind: Kind, folder: Path, seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        path = folder / kind.name
        path.write_bytes(kind.mutate(draw, kind.content))
        reads_or_says_why(lambda path=path: kind.read(path), f"seed {seed}, {kind.name}")


def test_every_kind_is_named(made):
    assert tuple(made) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_file_as_it_should_be_is_read(made, name, tmp_path):
    path = tmp_path / made[name].name
    path.write_bytes(made[name].content)
    assert reads_or_says_why(lambda: made[name].read(path), name)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file(made, name, tmp_path):
    fuzz(made[name], tmp_path, range(12))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_for_minutes(made, name, tmp_path):
    fuzz(made[name], tmp_path, range(1000, 1600))


# Run folders and sweeps

RUN_FILES: dict[str, Mutate] = {
    "config.json": of_json,
    "results.json": of_json,
    "examples.jsonl": mutated_lines,
    "requests.jsonl": mutated_lines,
    "progress.jsonl": mutated_lines,
    "all.sweep.json": of_json,
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """A sweep of two finished cells, with every file that a run folder can have."""
    out = tmp_path_factory.mktemp("sweep")
    text = find_recipe("tiny-demo", "sweep").read_text().replace("grid = {block = [32, 192]}", "")
    wanted = sweep_recipe.parse(
        {
            "title": "Two",
            "tasks": ["tiny_steps"],
            "limit": 4,
            "group": [{"model": "tiny-void", "plan": "void", "grid": {"block": [32, 64]}}],
            "table": [{"kind": "blocks", "title": "Score"}, {"kind": "details", "title": "All"}],
        },
        text[:10],
    )
    for cell in begin(wanted, "all", out):
        run = write_run(cell, out, size=4)
        RunFolder(run).write_requests([AnswerRequest(name=f"tiny_steps:{n}", prompt="p") for n in range(4)])
        RunFolder(run).journal.append([answered(n) for n in range(4)])
    return out


def answered(index: int) -> AnswerRecord:
    return AnswerRecord(
        key=index, ids=[5, 6, 1, 1], tokens=[5, 6], passes_decode=3, stop_reason="eos",
        seconds=0.1, name=f"tiny_steps:{index}", prompt_sha256="0" * 64, prompt_tokens=2, output="six",
        answer_tokens=2, eos=True, at_cap=False,
    )  # fmt: skip


def use(out: Path) -> None:
    """Everything that reads a run folder without a model."""
    runs = sorted((out / "cells").iterdir())
    first = read_run(runs[0])
    first.settings  # noqa: B018
    first.requests  # noqa: B018
    first.journal.wall_seconds  # noqa: B018
    first.results  # noqa: B018
    first.examples  # noqa: B018
    begun("all", out)
    made = report([out])
    as_markdown(made), as_latex(made), as_html(made)
    compared = compare_runs(*runs)
    compared_markdown(compared), compared_html(compared)


def fuzz_runs(sweep: Path, folder: Path, seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        out = folder / str(seed)
        shutil.copytree(sweep, out)
        name = draw.choice(list(RUN_FILES))
        path = out / name if name.endswith(".sweep.json") else sorted((out / "cells").iterdir())[0] / name
        path.write_bytes(RUN_FILES[name](draw, path.read_bytes()))
        reads_or_says_why(lambda out=out: use(out), f"seed {seed}, {name}")
        shutil.rmtree(out)


def test_a_run_folder_as_it_should_be_is_read(sweep):
    assert reads_or_says_why(lambda: use(sweep), "sweep")


def test_a_damaged_run_folder(sweep, tmp_path):
    fuzz_runs(sweep, tmp_path, range(16))


@pytest.mark.slow
def test_a_damaged_run_folder_for_minutes(sweep, tmp_path):
    fuzz_runs(sweep, tmp_path, range(1000, 1600))


# What no chance finds


@pytest.mark.parametrize("read", [recipe.read, sweep_recipe.read, read_published])
def test_deep_nesting_in_a_recipe_is_refused(read, tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(ConfigError, match=r"deep\.toml.*TOML"):
        read(path)


def test_deep_nesting_in_a_change_is_refused(tmp_path):
    path = tmp_path / "r.toml"
    path.write_bytes(find_recipe("tiny/void", "train").read_bytes())
    with pytest.raises(ConfigError, match="--set"):
        recipe.read(path, ["run.steps=" + "[" * 5000])


def test_a_sweep_of_more_cells_than_anybody_runs_is_refused():
    grid = {name: list(range(8, 40)) for name in ("canvas", "block", "steps", "top_k")}
    wanted = {
        "title": "t",
        "tasks": ["tiny_steps"],
        "group": [{"model": "tiny-void", "plan": "void", "grid": grid}],
    }
    with pytest.raises(ConfigError, match="1,048,576 cells"):
        sweep_recipe.parse(wanted, "huge.toml")
