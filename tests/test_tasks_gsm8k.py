"""GSM8K scoring by lm-eval's filters and metric, with our YAML: the specification's examples."""

import pytest

from voidpad.errors import DataError
from voidpad.evaluate import EvalConfig, Resources
from voidpad.evaluate.prepare import load_tasks
from voidpad.evaluate.tasks import gsm8k, humaneval, mbpp
from voidpad.evaluate.tasks.gsm8k import final_number

GOLD = "He sells 9 eggs for $2.\n#### 18"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for part in ("train", "test"):
        (folder / f"gsm8k_{part}.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    return load_tasks(EvalConfig(model="none", tasks=("gsm8k",)), Resources(data=folder))["gsm8k"]


@pytest.mark.parametrize(
    ("text", "flexible", "strict"),
    [
        ("He has $1,800. #### 18 dollars.\n\nextra 42.", False, True),  # text after the answer
        ("He has $1,800. #### 18 dollars.\n\n", True, True),
        ("the answer is 18 ...", False, False),  # two full stops count as a number
        ("the answer is 18", True, False),
        ("#### 1,8", True, True),
        ("#### $18.", True, False),
        ("#### 18.0", False, False),
        ("#### -18", False, False),
        ("no numbers, and $", False, False),
        ("", False, False),
    ],
)
def test_what_the_graders_forgive(task, text, flexible, strict):
    doc = {"question": "q", "answer": GOLD}
    (graded,) = task.grade([doc], [text])
    scores = {name: task.process_results(doc, [value])["exact_match"] for name, value in graded.items()}
    assert scores == {"flexible-extract": flexible, "strict-match": strict}
    assert (final_number(text) == final_number(GOLD)) == flexible


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "is empty"),
        (b'{"question": "q"}\n', "gsm8k_train.jsonl:1: .*answer"),
        (b'{"question": "q", "answer": "a"}\n\n', "gsm8k_train.jsonl"),
        (b'{"question": "\xff", "answer": "a"}\n', "gsm8k_train.jsonl"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, named):
    (tmp_path / "gsm8k_train.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=named):
        gsm8k.items(tmp_path)


def test_a_damaged_archive_is_named(tmp_path):
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"HumanEval.jsonl.gz"):
        humaneval.items(tmp_path)
    with pytest.raises(DataError, match=r"no mbpp.jsonl in"):
        mbpp.items(tmp_path)
