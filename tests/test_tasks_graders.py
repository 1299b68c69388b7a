"""Graders: no answer raises or hangs, and what runs in child processes costs one answer at most."""

import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faulty_grader import spell
from test_tasks_code import HUMANEVAL, MBPP, F, M
from voidpad.evaluate.tasks import builtin_tasks, math500, mbpp
from voidpad.evaluate.tasks.graders import isolated, no_program

CODE = [*((grade, F) for grade in HUMANEVAL), *((grade, M) for grade in MBPP)]
FRAGMENTS = (
    "def f(x):", "def g(x):\n", "    return x + 1\n", "return 2 * x\n", "```", "```python\n", "[BEGIN]", "[DONE]",
    "DONE", "BEGIN", "'", '"', '"""', "\n", "\n    ", " ", "\t", "\r", "\r\n", "\f", "\0", "(", ")", "[", "]", "{", "}",
    "\\", "#", "#### ", "$", "1", "-5", "1,000.", ".", ",", "\\boxed{", "\\frac{1}{2}", "\\text{", "!", "^", "_", "x",
    "=", ":", ";", "@", "lambda", "else:", "try:", "except:", "if x:", "class A:", "import os", "from a import b",
    "async ", "f'{", "}'", "f\"{'\u00a0'}\"", "0x" + "f" * 4000, "9" * 5000, "\u00a0", "\u2028", "\ud800", "\u202e",
    "\U0001f600", "\ufeff", "e\u0301", "(" * 150, "-" * 500, "a." * 300, "[" * 80 + "]" * 80, "**", "nonlocal x",
)  # fmt: skip
near_code = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | near_code)
def test_no_text_makes_a_grader_raise(text):
    for grade, doc in CODE:
        assert isinstance(grade(text, doc), str)
    problem = {"task": "tiny_complete", "item": 0}
    for found in (builtin_tasks.last_program_filter, builtin_tasks.first_program_filter):
        assert isinstance(found([[text]], [problem])[0], str)
    assert isinstance(builtin_tasks.first_answer_filter([[text]], [problem])[0], str)
    assert builtin_tasks.score({"task": "tiny_steps", "item": 0}, [text])["exact_match"] in (0.0, 1.0)
    assert isinstance(math500.plain(text), str)


@settings(max_examples=40, deadline=None)
@given(near_code)
def test_no_text_makes_math500_raise(text):
    for grade in (math500.voidpad_judgement, math500.authors_judgement):
        assert grade(f"\\boxed{{{text}}}", {"gold": "2"})["correct"] in (True, False)


def test_children_grade_in_order_and_faults_cost_one_answer_each():
    texts = ["a", "hang", "b", "raise", "grow", "die", "print", "\ud800\0", "c"]
    grade = isolated(spell, lambda reason: f"wrong: {reason}", seconds=3)
    results = grade([[text] for text in texts], [{"n": n} for n in range(len(texts))])
    assert [results[n] for n in (0, 2, 6, 7, 8)] == ["a/0", "b/2", "print/6", "\ud800\0/7", "c/8"]
    assert "over 3 seconds" in results[1]
    assert results[3:5] == ["wrong: KeyError", "wrong: MemoryError"]
    assert "grading was stopped" in results[5]
    assert grade([], []) == []


@pytest.mark.parametrize(
    ("grade", "text", "doc"),
    [
        (math500.voidpad_judgement, r"\boxed{((9!)!)!}", {"gold": "5"}),
        (mbpp.voidpad_program, "\n".join(["(" + "1, " * 4000] * 100), M),
    ],
)
def test_an_answer_that_takes_too_long_is_wrong(grade, text, doc):
    """It is stopped from outside, by the limit of CPU time or, on a busy machine, by math-verify's clock before."""
    start = time.monotonic()
    assert (
        isolated(grade, lambda reason: {"correct": False}, seconds=2)([[text]], [doc])[0]["correct"] is False
    )
    assert time.monotonic() - start < 60


def test_a_child_that_grades_does_not_load_the_package():
    """Importing torch takes longer than grading all of HumanEval."""
    code = """
import sys
from voidpad.evaluate.tasks import graders, gsm8k, humaneval, math500, mbpp
print([name for name in ("torch", "transformers", "lm_eval", "datasets", "voidpad.decode") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_child_runs_nothing_of_the_current_folder(tmp_path, monkeypatch):
    for name in ("queue", "importlib", "socket", "json", "faulty_helper"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    for path in ([], [""], [str(tmp_path)]):
        monkeypatch.setattr(sys, "path", [*path, *filter(None, sys.path)])
        assert isolated(spell, str)([["a"]], [{"n": 1}]) == ["a/1"]
    assert not (tmp_path / "ran").exists()


def test_a_child_imports_what_its_parent_imports(tmp_path, monkeypatch):
    """Otherwise a checkout on PYTHONPATH would be graded by the voidpad that is installed beside it."""
    (tmp_path / "tqdm.py").write_text("def grade(text, doc): return 'of the folder'")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def grade(text, doc):
        raise AssertionError("only the child grades")

    grade.__module__ = "tqdm"  # which is installed too
    assert isolated(grade, str)([["a"]], [{}]) == ["of the folder"]


def test_a_program_that_cannot_be_made_says_why():
    (source,) = isolated(spell, no_program)([["raise"]], [{}])
    with pytest.raises(ValueError, match=r"the answer is not a program: KeyError$"):
        exec(source)
