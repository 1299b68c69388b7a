"""Prepare, answer and judge as stages of their own, on different machines, and the weights as part of a run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from voidpad.commands.cli import app as whole
from voidpad.commands.eval import evaluate as command
from voidpad.errors import ConfigError, DataError
from voidpad.evaluate import EvalConfig, Resources, RunFolder, evaluate, read_run
from voidpad.evaluate.answer import answer, load_model, load_run
from voidpad.evaluate.folder import AnswerRecord
from voidpad.evaluate.judge import judge
from voidpad.evaluate.prepare import load_tasks, prepare
from voidpad.experiments.report.compare import compare_runs
from voidpad.models import random_model, save

CODE = Resources(allow_code_execution=True)
FIELDS = {"canvas": 16, "block": 8, "temperature": 2.0}
app = typer.Typer()
app.command("eval")(command)
app.command("other")(lambda: None)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages") / "model"
    save(random_model("llada", vocab=110, context=1024, dtype=torch.float32), folder)
    return folder


@pytest.fixture
def settings(weights):
    return EvalConfig(model=str(weights), tasks=("tiny_steps", "tiny_write"), fields=FIELDS, limit=2)


def untimed(examples):
    return [{name: value for name, value in one.items() if name != "seconds"} for one in examples]


def test_stages_one_by_one_give_the_files_of_the_whole(settings, tmp_path):
    evaluate(settings, tmp_path / "whole", resources=CODE)
    folder = RunFolder(tmp_path / "parts")
    requests = prepare(settings, folder)
    assert [request.name for request in requests] == [
        "tiny_steps:0", "tiny_steps:1", "tiny_write:0", "tiny_write:1",
    ]  # fmt: skip
    assert folder.requests == requests
    answer(folder)
    assert not folder.complete
    results = judge(folder, resources=CODE)
    whole = read_run(tmp_path / "whole")
    assert untimed(folder.examples) == untimed(whole.examples)
    assert [(one["prompt"], one["gold"]) for one in whole.examples] == [(r.prompt, r.gold) for r in requests]
    assert folder.config == whole.config
    assert results["tasks"].keys() == whole.results["tasks"].keys()
    assert set(results["provenance"]) == set(whole.results["provenance"])


def test_the_answering_machine_needs_neither_harness_nor_sandbox(settings, tmp_path):
    """`voidpad eval --stage answer` runs in a process where importing these is an error."""
    folder = RunFolder(tmp_path / "run")
    prepare(settings, folder)
    code = (
        "import sys\n"
        "class Refused:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        banned = ('lm_eval', 'datasets', 'math_verify', 'matplotlib', 'voidpad.sandbox')\n"
        "        if any(name == one or name.startswith(one + '.') for one in banned):\n"
        "            raise ImportError(f'{name} is not on this machine')\n"
        "sys.meta_path.insert(0, Refused())\n"
        "from voidpad.commands.cli import main\n"
        f"sys.argv = ['voidpad', 'eval', '--stage', 'answer', '--out', {str(folder.path)!r}]\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert len(folder.journal.records) == 4
    assert judge(folder, resources=CODE)["tasks"]["tiny_write"]["n"] == 2


def test_the_command_runs_single_stages(settings, tmp_path):
    def run(*words):
        return CliRunner().invoke(app, ["eval", "--out", str(tmp_path), *words])

    first = run("--stage", "prepare", "--model", settings.model, "--tasks", "tiny_expr", "--limit", "2",
                "--canvas", "16", "--block", "8")  # fmt: skip
    assert first.exit_code == 0, first.output
    assert "--stage answer" in first.stderr
    early = run("--stage", "judge")
    assert "2 examples have no answer, the first is tiny_expr:0; run --stage answer first" in str(
        early.exception
    )
    twice = run("--stage", "answer", "--plan", "original")
    assert "--plan: --stage answer takes it from" in str(twice.exception)
    assert run("--stage", "answer", "--rows", "1").exit_code == 0
    last = run("--stage", "judge", "--json")
    assert json.loads(last.stdout)["tasks"]["tiny_expr"]["n"] == 2


GOLD = {
    "gsm8k": lambda doc: doc["answer"],
    "math500": lambda doc: f"It is $\\boxed{{{doc['gold']}}}$.",
    "humaneval": lambda doc: doc["prompt"] + doc["canonical_solution"],
    "mbpp": lambda doc: doc["code"],
    "tiny_steps": lambda doc: f"#### {doc['target']}",
}


def test_answers_from_elsewhere_are_judged(data_dir, tmp_path):
    """Requests are prepared, gold and other answers put into the journal, the judge grades them."""
    resources = Resources(data=data_dir / "benchmarks", allow_code_execution=True, workers=2)
    config = EvalConfig(model="nobody", tasks=tuple(GOLD), limit=2)
    folder = RunFolder(tmp_path)
    requests = prepare(config, folder, resources=resources)
    tasks = load_tasks(config, resources)
    facts = {
        "key": 0,
        "ids": [1],
        "tokens": [1],
        "passes_decode": 1,
        "stop_reason": "eos",
        "prompt_tokens": 1,
    }
    facts |= {"answer_tokens": 1, "eos": True, "at_cap": False}
    for request in requests:
        gold = GOLD[request.task](tasks[request.task].eval_docs[request.index])
        output = gold if request.index == 0 else "nothing"
        record = AnswerRecord(name=request.name, output=output, prompt_sha256=request.prompt_sha256, **facts)
        folder.journal.append([record])
    head = folder.head
    head["plan"] = {"block": 1}
    head["provenance"] |= {"approximations": [], "length_rule": "Fixed", "fixed_canvas": True}
    folder.write_head(head)
    results = judge(folder, resources=resources)
    assert {task: one["score"] for task, one in results["tasks"].items()} == dict.fromkeys(GOLD, 50.0)
    assert [one["score"] for one in folder.examples] == [1.0, 0.0] * len(GOLD)


def test_a_run_of_an_older_version_is_refused_in_one_line(settings, tmp_path):
    evaluate(settings.updated(tasks=("tiny_steps",)), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(DataError, match="format version 2, this release reads 3"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="format version 2"):
        evaluate(settings.updated(tasks=("tiny_steps",)), tmp_path)


def test_a_run_can_be_prepared_where_the_model_is_not(settings, weights, tmp_path):
    away = weights.with_name("away")
    weights.rename(away)
    try:
        folder = RunFolder(tmp_path)
        prepare(settings, folder)
        assert folder.config.weights is None
    finally:
        away.rename(weights)
    answer(folder)
    known = folder.config.weights
    assert known
    prepare(settings, folder)  # again, with answers there
    assert folder.config.weights == known
    assert folder.head["plan"]["canvas"] == 16


def retrained(folder: Path, seed: int) -> None:
    """Other weights under the same name."""
    shutil.rmtree(folder, ignore_errors=True)
    save(random_model("llada", vocab=110, context=1024, seed=seed, dtype=torch.float32), folder)


def test_changed_weights_are_another_run(tmp_path):
    retrained(tmp_path / "model", 0)
    settings = EvalConfig(model=str(tmp_path / "model"), tasks=("tiny_steps",), fields=FIELDS, limit=1)
    evaluate(settings, tmp_path / "run")
    before = read_run(tmp_path / "run").config.weights
    retrained(tmp_path / "model", 1)
    with pytest.raises(ConfigError, match=rf"a run with weights='{before}', now '\w+'; use another --out"):
        evaluate(settings, tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"weights='{before}': .*model now has weights '\w+'"):
        answer(read_run(tmp_path / "run"))


def test_an_adapter_may_be_merged_first(tmp_path):
    """The same function, rounded differently: another setting of the run, not another approximation."""
    exact = EvalConfig(model="tiny-void", tasks=("tiny_expr",), limit=1)
    merged = load_run(exact.updated(merge=True), Resources())
    assert merged.config.merge is True
    assert merged.config.weights == load_run(exact, Resources()).config.weights
    assert merged.provenance["approximations"] == []
    net = load_model(exact.updated(merge=True), Resources()).net
    assert type(net).__name__ == "LlamaForCausalLM"
    assert load_model(exact.updated(model="tiny-instruct", merge=True), Resources()).name == "tiny-instruct"


def test_merging_and_quantizing_go_by_way_of_a_merged_folder(tmp_path):
    """What the refusal advises works."""
    both = EvalConfig(model="tiny-void", tasks=("tiny_expr",), limit=1)
    with pytest.raises(ConfigError, match="voidpad merge"):
        both.updated(merge=True, quantize="8bit")
    merged = CliRunner().invoke(whole, ["merge", "tiny-void", "--out", str(tmp_path / "merged")])
    assert merged.exit_code == 0, merged.output
    advised = both.updated(model=str(tmp_path / "merged"), quantize="8bit")
    assert load_run(advised, Resources()).provenance["approximations"] == ["8bit weights"]


# Two runs compared


def test_two_runs_are_compared_item_by_item(settings, tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for seed, path in enumerate(paths):
        evaluate(settings.updated(tasks=("tiny_steps",), limit=4, seed=seed), path)
    second = RunFolder(paths[1])
    lines, results = second.examples, second.results
    lines[2] |= {"score": 1.0, "output": "<b>#### 7</b>"}  # as if the second run had one more right
    second.write_results(lines, results)
    title, text = compare_runs(*paths)
    assert title == "b against a"
    assert "- seed: 1 against 0\n" in text
    assert text.count("\n## ") == 1
    assert "| task | items | a | b | difference |" in text
    assert "| tiny_steps | 4 | 0.00 | 25.00 | +25.00 | [+0.00, +75.00] | 0 | 1 | 1 |" in text
    assert "## tiny_steps 2: 0 to 1" in text
    assert lines[2]["prompt"].splitlines()[0] in text
    shown = CliRunner().invoke(whole, ["report", "--compare", *map(str, paths)])
    assert shown.output == text
    done = CliRunner().invoke(
        whole, ["report", "--compare", *map(str, paths), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0
    assert (tmp_path / "out" / "compare.md").read_text() == text
    assert "&lt;b&gt;#### 7&lt;/b&gt;" in (tmp_path / "out" / "compare.html").read_text()


def test_runs_that_cannot_be_compared_are_refused(settings, tmp_path):
    steps, expr = settings.updated(tasks=("tiny_steps",)), settings.updated(tasks=("tiny_expr",))
    evaluate(steps, tmp_path / "a")
    evaluate(expr, tmp_path / "b")
    with pytest.raises(ConfigError, match="no item was answered by both"):
        compare_runs(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "results.json").unlink()
    with pytest.raises(DataError, match="b: not judged yet"):
        compare_runs(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ConfigError, match="takes two run folders, got 1"):
        CliRunner().invoke(whole, ["report", "--compare", str(tmp_path / "a")], catch_exceptions=False)
