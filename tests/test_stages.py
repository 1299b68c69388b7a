"""Stages on different machines, the command, the weights as part of a run, and two runs compared."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from test_evaluate import untimed
from voidpad.errors import ConfigError, DataError
from voidpad.evaluate import EvalConfig, Resources, RunFolder, evaluate, read_run
from voidpad.evaluate.answer import Answerer, load_model
from voidpad.evaluate.folder import AnswerRecord
from voidpad.evaluate.prepare import load_tasks
from voidpad.evaluate.run import answer, judge, prepare
from voidpad.experiments.report.pages import compare_runs
from voidpad.models import random_model, read_card, save

CODE = Resources(allow_code_execution=True)
FIELDS = {"canvas": 16, "block": 8, "temperature": 2.0}


def trained(folder, seed=0):
    """A small model on disk; other weights in the place of those that were there."""
    shutil.rmtree(folder, ignore_errors=True)
    save(random_model("llada", vocab=110, context=1024, seed=seed, dtype=torch.float32), folder)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("stages") / "model")


@pytest.fixture
def settings(weights):
    return EvalConfig(model=str(weights), tasks=("tiny_steps", "tiny_write"), fields=FIELDS, limit=2)


@pytest.fixture
def steps(settings):
    return settings.updated(tasks=("tiny_steps",), limit=5)


# Stages


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
    facts = {"key": 0, "ids": [1], "tokens": [1], "passes_decode": 1, "stop_reason": "eos"}
    facts |= {"prompt_tokens": 1, "answer_tokens": 1, "eos": True, "at_cap": False}
    for request in requests:
        gold = GOLD[request.task](tasks[request.task].eval_docs[request.index])
        output = gold if request.index == 0 else "nothing"
        record = AnswerRecord(name=request.name, output=output, prompt_sha256=request.prompt_sha256, **facts)
        folder.journal.append([record])
    head = folder.head
    head["plan"] = {"block": 1}
    head["provenance"] |= {"approximations": [], "one_length": True}
    folder.write_head(head)
    results = judge(folder, resources=resources)
    assert {task: one["score"] for task, one in results["tasks"].items()} == dict.fromkeys(GOLD, 50.0)
    assert [one["score"] for one in folder.examples] == [1.0, 0.0] * len(GOLD)


def test_a_run_of_an_older_version_is_refused_in_one_line(steps, tmp_path):
    evaluate(steps, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 3}))
    for reading in (lambda: read_run(tmp_path), lambda: evaluate(steps, tmp_path)):
        with pytest.raises(DataError, match="format version 3, this release reads 4"):
            reading()


# The weights


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


def test_changed_weights_are_another_run(tmp_path):
    model = trained(tmp_path / "model")
    settings = EvalConfig(model=str(model), tasks=("tiny_steps",), fields=FIELDS, limit=1)
    evaluate(settings, tmp_path / "run")
    before = read_run(tmp_path / "run").config.weights
    trained(model, seed=1)
    with pytest.raises(ConfigError, match=rf"a run with weights='{before}', now '\w+'; use another --out"):
        evaluate(settings, tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"weights='{before}': .*model now has weights '\w+'"):
        answer(read_run(tmp_path / "run"))


def test_an_adapter_may_be_merged_first():
    """The same function, rounded differently: another setting of the run, not another approximation."""
    exact = EvalConfig(model="tiny-void", tasks=("tiny_expr",), limit=1)
    merged = Answerer.load(exact.updated(merge=True), Resources())
    assert merged.config.merge is True
    assert merged.config.weights == Answerer.load(exact, Resources()).config.weights
    assert merged.provenance["approximations"] == []
    assert type(merged.model.net).__name__ == "LlamaForCausalLM"
    assert load_model(exact.updated(model="tiny-instruct", merge=True), Resources()).name == "tiny-instruct"


def test_merging_and_quantizing_go_by_way_of_a_merged_folder(voidpad, tmp_path):
    """What the refusal advises works."""
    both = EvalConfig(model="tiny-void", tasks=("tiny_expr",), limit=1)
    with pytest.raises(ConfigError, match="voidpad merge"):
        both.updated(merge=True, quantize="8bit")
    merged = voidpad("merge tiny-void --out", tmp_path / "merged")
    assert merged.status == 0, merged.err
    advised = both.updated(model=str(tmp_path / "merged"), quantize="8bit")
    assert Answerer.load(advised, Resources()).provenance["approximations"] == ["8bit weights"]


# The command


def test_a_run_and_its_json(voidpad, weights, tmp_path):
    words = (
        "--plan void-expansion --canvas 16 --block 8 --set window=8 --set limit=32 --set trim=true --limit 3"
    )
    done = voidpad(f"eval {words} --tasks tiny_steps --json --model", weights, "--out", tmp_path)
    assert done.status == 0, done.err
    assert (
        "approximate: trim"
        in voidpad(f"eval {words} --tasks tiny_steps --model", weights, "--out", tmp_path).err
    )
    results, stored = json.loads(done.out), read_run(tmp_path)
    assert results["tasks"] == stored.results["tasks"]
    assert stored.config.limit == 3
    assert stored.config.fields == {"canvas": 16, "block": 8, "window": 8, "limit": 32, "trim": True}
    assert stored.head["plan"]["limit"] == 32
    task = results["tasks"]["tiny_steps"]
    assert task["passes_probe"] >= 1
    assert task["passes_shared"] == 1
    assert all(one["canvas"] <= 32 for one in stored.examples)


def test_the_command_runs_single_stages(voidpad, weights, tmp_path):
    def run(words, *more):
        return voidpad(f"eval --out {tmp_path} --stage {words}", *more)

    first = run("prepare --tasks tiny_expr --limit 2 --canvas 16 --block 8 --model", weights)
    assert first.status == 0, first.err
    assert "--stage answer" in first.err
    assert "2 items have no answer, the first is tiny_expr:0" in run("judge").err
    assert "--plan: --stage answer takes it from" in run("answer --plan original").err
    assert run("answer --rows 1").status == 0
    assert json.loads(run("judge --json").out)["tasks"]["tiny_expr"]["n"] == 2


@pytest.mark.parametrize(("padding", "plan"), [("void", "void"), ("eos", "original"), (None, "original")])
def test_the_plan_follows_the_padding_of_the_checkpoint(voidpad, weights, tmp_path, padding, plan):
    model = shutil.copytree(weights, tmp_path / "model")
    replace(read_card(model), padding=padding).write(model)
    line = f"eval --model {model} --stage prepare --tasks tiny_expr --limit 1 --out {tmp_path}/run"
    assert f"plan: {plan} (this checkpoint " in voidpad(line).err
    assert read_run(tmp_path / "run").config.plan == plan


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tasks nothing", "task 'nothing'"),
        ("--tasks tiny_write", "--allow-code-execution"),
        ("--tasks tiny_steps --set threshold", "--set 'threshold'"),
        ("--tasks tiny_steps --set colour=red", "colour"),
        ("--tasks tiny_steps --set parity=gpt", "parity"),
        ("--tasks tiny_steps --shard 1-2", "shard='1-2'"),
        ("--tasks gsm8k --data /nowhere", "no gsm8k_train.jsonl in /nowhere"),
        ("--tasks tiny_expr --stage prepare --model owner/absent", "name --plan"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_written(voidpad, weights, tmp_path, words, message):
    done = voidpad(f"eval --model {weights} --out {tmp_path}/run {words}")
    assert done.status != 0
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


# Two runs compared


def test_two_runs_are_compared_item_by_item(voidpad, steps, tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for seed, path in enumerate(paths):
        evaluate(steps.updated(limit=4, seed=seed), path)
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
    assert voidpad("report --compare", *paths).out == text
    assert voidpad("report --compare", *paths, "--out", tmp_path / "out").status == 0
    assert (tmp_path / "out" / "compare.md").read_text() == text
    assert "&lt;b&gt;#### 7&lt;/b&gt;" in (tmp_path / "out" / "compare.html").read_text()


def test_runs_that_cannot_be_compared_are_refused(voidpad, steps, tmp_path):
    evaluate(steps, tmp_path / "a")
    evaluate(steps.updated(tasks=("tiny_expr",)), tmp_path / "b")
    with pytest.raises(ConfigError, match="no item was answered by both"):
        compare_runs(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "results.json").unlink()
    with pytest.raises(DataError, match="b: not judged yet"):
        compare_runs(tmp_path / "a", tmp_path / "b")
    assert "takes two run folders, got 1" in voidpad("report --compare", tmp_path / "a").err
