"""Tasks from a user's YAML files, and the number of shots."""

import json
from pathlib import Path

import pytest
import torch

from voidpad.errors import ConfigError, DataError, VoidpadError
from voidpad.evaluate import EvalConfig, Resources, RunFolder, evaluate, read_run
from voidpad.evaluate.prepare import build_requests, choose_tasks, load_tasks
from voidpad.evaluate.run import judge, prepare
from voidpad.models import random_model

TASK = """
include: shared.yaml
task: sums
dataset_kwargs:
  data_files: {{test: {folder}/test.jsonl, shots: {folder}/shots.jsonl}}
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
fewshot_split: shots
num_fewshot: 1
process_results: !function scoring.score
metric_list:
  - {{metric: right, aggregation: mean, higher_is_better: true}}
  - {{metric: letters, aggregation: mean, higher_is_better: false}}
"""
SHARED = """
dataset_path: json
test_split: test
output_type: generate_until
generation_kwargs: {until: ["\\n\\n"]}
"""
SCORING = """
from pathlib import Path
Path(__file__).with_name("imported").touch()


def score(doc, results):
    assert "voidpad_item" not in doc
    return {"right": float(len(results[0]) % 2), "letters": len(results[0])}
"""


TRUSTED = Resources(trust_tasks=True)


@pytest.fixture(scope="module")
def model():
    return random_model("llada", vocab=110, context=1024, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "mine"
    made.mkdir()
    (made / "sums.yaml").write_text(TASK.format(folder=made))
    (made / "shared.yaml").write_text(SHARED)
    (made / "scoring.py").write_text(SCORING)
    for name, first, count in (("test", 1, 5), ("shots", 20, 3)):
        lines = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(first, first + count)]
        (made / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def settings(folder: Path, **changes) -> EvalConfig:
    names, own = choose_tasks([str(folder / "sums.yaml")])
    fields = {"canvas": 16, "block": 8}
    return EvalConfig(model="random", tasks=names, fields=fields, own_tasks=own, **changes)


def test_a_task_of_ones_own_is_a_run_like_any_other(model, folder, tmp_path):
    results = evaluate(settings(folder, limit=3), tmp_path / "run", model=model, resources=TRUSTED)
    run, found = read_run(tmp_path / "run"), results["tasks"]["sums"]
    assert judge(run, resources=TRUSTED)["tasks"] == results["tasks"]
    assert [found[name] for name in ("n", "test_size", "metric", "filter")] == [3, 5, "right", "none"]
    outputs = [one["output"] for one in run.examples]
    assert [one["score"] for one in run.examples] == [len(text) % 2 for text in outputs]
    assert found["extra"]["letters_share"] == sum(map(len, outputs)) / 3
    assert [one["gold"] for one in run.examples] == ["2", "4", "6"]
    assert run.requests[1].stop == ("\n\n",)
    assert run.examples[1]["prompt"].endswith("\n\nQ: 2 + 2?\nA:")
    assert run.examples[1]["prompt"].count("Q:") == 2


def test_nothing_of_a_file_runs_before_it_is_trusted(model, folder, tmp_path):
    for stage in (
        lambda: evaluate(settings(folder), tmp_path / "run", model=model),
        lambda: prepare(settings(folder), RunFolder(tmp_path / "run")),
    ):
        with pytest.raises(ConfigError, match=r"can run code on this machine .* then pass --trust-tasks"):
            stage()
    assert not (folder / "imported").exists()
    assert not (tmp_path / "run").exists()
    load_tasks(settings(folder), TRUSTED)
    assert (folder / "imported").exists()


def test_a_run_goes_on_with_a_new_scorer_and_not_with_new_prompts(model, folder, tmp_path):
    def go_on():
        return evaluate(settings(folder, limit=2), tmp_path / "run", model=model, resources=TRUSTED)

    before = go_on()["tasks"]["sums"]["extra"]
    (folder / "scoring.py").write_text("def score(doc, results):\n    return {'right': 1.0, 'letters': 7}\n")
    assert before != go_on()["tasks"]["sums"]["extra"] == {"letters_share": 7}
    (folder / "shared.yaml").write_text(SHARED + "description: Hello.\n")
    with pytest.raises(DataError, match="sums:0 has another prompt; use another folder"):
        go_on()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("task: sums", "task: [sums]"), "`task` must be one name"),
        (("task: sums", "task: tiny_steps"), "task 'tiny_steps' is voidpad's; give it another name"),
        (("task: sums", "task: sums\noutput_type: multiple_choice"), "output_type is 'multiple_choice'"),
        (("task: sums", "task: sums\nrepeats: 4"), "repeats is 4"),
        (("task: sums", "task: sums\nunsafe_code: true"), "CodeBenchmark"),
        (("metric_list", "metrics"), "metric_list is missing"),
        (("task: sums", "task: sums: x"), "damaged YAML file"),
        (("shared.yaml", "sums.yaml"), "Include cycle"),
        (("scoring.score", "scoring.nothing"), "task sums: AttributeError"),
        (("scoring.score", "nowhere.score"), "task sums: ImportError"),
        (("until:", "temperature: 0.7, until:"), r"^sums: gen_kwargs temperature=0.7"),
        (("Q: {{question}}", "Q: {{nothing}}"), "task sums: UndefinedError: 'nothing' is undefined"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(folder, tmp_path, change, message):
    for name in ("sums.yaml", "shared.yaml"):
        (folder / name).write_text((folder / name).read_text().replace(*change))
    with pytest.raises(ConfigError, match=message) as refused:
        prepare(settings(folder), RunFolder(tmp_path / "run"), resources=TRUSTED)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("{}['nothing']", r"^sums:0: no score: KeyError: 'nothing'"),
        ("{'right': 7.0, 'letters': 1.0}", r"^sums:0: right=7.0"),
        ("{'letters': 1.0}", r"^sums:0: no score: KeyError: 'right'"),
    ],
)
def test_a_scorer_that_fails_names_task_and_item(model, folder, tmp_path, score, message):
    (folder / "scoring.py").write_text(f"def score(doc, results):\n    return {score}\n")
    with pytest.raises(VoidpadError, match=message):
        evaluate(settings(folder, limit=2), tmp_path / "run", model=model, resources=TRUSTED)


# The number of shots


@pytest.mark.parametrize("number", [None, 0, 1, 3])
def test_the_number_of_shots(folder, tmp_path, number):
    requests = prepare(settings(folder, num_fewshot=number), RunFolder(tmp_path / "run"), resources=TRUSTED)
    shots = 1 if number is None else number
    assert {request.prompt.count("Q:") for request in requests} == {shots + 1}
    assert read_run(tmp_path / "run").config.num_fewshot == number


def test_an_item_is_no_shot_of_its_own(folder, tmp_path):
    text = (folder / "sums.yaml").read_text().replace("fewshot_split: shots", "fewshot_split: test")
    (folder / "sums.yaml").write_text(text)
    requests = prepare(settings(folder, num_fewshot=4), RunFolder(tmp_path / "run"), resources=TRUSTED)
    for item, request in enumerate(requests, 1):
        assert request.prompt.count(f"Q: {item} + {item}?") == 1
    with pytest.raises(ConfigError, match="sums:0: no prompt: ValueError"):
        prepare(settings(folder, num_fewshot=5), RunFolder(tmp_path / "run"), resources=TRUSTED)


def test_a_task_that_fixes_its_prompt_refuses_shots():
    fixed = EvalConfig(model="random", tasks=("tiny_steps",), num_fewshot=2)
    tasks = load_tasks(fixed, Resources())
    with pytest.raises(ConfigError, match="num_fewshot=2: task tiny_steps has no items to draw"):
        build_requests(tasks, fixed)
    assert len(build_requests(tasks, fixed.updated(num_fewshot=0, limit=3))) == 3
    with pytest.raises(ConfigError, match="num_fewshot"):
        fixed.updated(num_fewshot=-1)
