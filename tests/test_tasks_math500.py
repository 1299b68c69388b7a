"""MATH500 scoring: boxes, math-verify, the string fallback, gold answers."""

import json
import threading

import pytest

from voidpad.evaluate.tasks.boxes import boxed
from voidpad.evaluate.tasks.math500 import (
    Judgement,
    authors_judgement,
    plain,
    prompt,
    score,
    voidpad_judgement,
)


def judge(gold: str, text: str) -> Judgement:
    return voidpad_judgement(text, {"gold": gold})


def judge_authors(gold: str, text: str) -> Judgement:
    return authors_judgement(text, {"gold": gold})


def test_examples_of_the_specification():
    half = r"It is half, so \boxed{\frac{1}{2}}$."
    assert judge_authors(r"\frac{1}{2}", half).correct
    assert judge(r"\frac{1}{2}", half).correct
    assert plain(r"\frac{1}{2}") == plain(half)
    east = r"\boxed{ (3, \text{East}) }"
    assert plain("(3,east)") == plain(east)
    assert judge("(3,east)", east).correct
    assert judge_authors("(3,east)", east).correct
    assert boxed(r"\boxed{x = 5") is None


def test_an_unbalanced_last_box_is_no_box_and_the_whole_text_is_used():
    cut_off = r"\boxed{x = 5"
    assert plain(cut_off) == r"\boxed{x=5"
    assert judge("5", cut_off).by == "math-verify"  # found in the whole text
    assert not judge("5", r"\boxed{8}, no, \boxed{x = 5").correct
    assert plain(r"\boxed{8}, no, \boxed{x = 5") != "8"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{a} and \boxed{b{c}d}", "b{c}d"),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        ("no box", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed 5", None),
    ],
)
def test_the_last_balanced_box(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("gold", "answer", "by"),
    [
        (r"\frac{1}{2}", r"\boxed{0.5}", "math-verify"),
        (r"x^2+2x+1", r"\boxed{(x+1)^2}", "math-verify"),
        ("12", r"the result is $12$", "math-verify"),
        (r"\text{June 20}", r"\boxed{june 20}", "string"),
        ("east", "Therefore, the final answer is: East.", "string"),
        ("12", r"\boxed{13}", "none"),
        ("12", "", "none"),
    ],
)
def test_who_decides(gold, answer, by):
    found = judge(gold, answer)
    assert found.by == by
    assert found.correct == (by != "none")


def test_the_fallback_is_counted():
    assert score({}, [judge(r"\text{June 20}", r"\boxed{june 20}")])["fallback"] == 1.0
    assert score({}, [judge("3", r"\boxed{3}")]) == {"accuracy": 1.0, "fallback": 0.0, "unparsed": 0.0}


def test_an_endless_formula_is_wrong_not_endless():
    assert not judge("2", r"\boxed{9^{9^{9^{9}}}}").correct


def test_scoring_works_outside_the_main_thread():
    found = []
    worker = threading.Thread(target=lambda: found.append(judge(r"\frac{1}{2}", r"\boxed{0.5}")))
    worker.start()
    worker.join()
    assert found[0].by == "math-verify"


def test_the_prompt_keeps_the_box_and_the_stop_phrase():
    text = prompt({"problem": "What is 1+1?"})
    assert r"$\boxed{" in text
    assert "I hope it is correct" in text
    assert text.endswith("\n\nWhat is 1+1?")


def golds(data_dir) -> list[tuple[str, str]]:
    lines = (data_dir / "benchmarks/math500.jsonl").read_text(encoding="utf-8").splitlines()
    solutions = [json.loads(line)["answer"] for line in lines]
    return [(boxed(solution), solution) for solution in solutions]


def test_gold_answers_score_in_full(data_dir):
    pairs = golds(data_dir)
    assert len(pairs) == 500
    assert all(judge(gold, solution).correct for gold, solution in pairs)
    assert all(judge(gold, solution).by == "math-verify" for gold, solution in pairs)


def test_the_authors_way_needs_its_fallback_for_a_tenth(data_dir):
    found = [judge_authors(gold, f"\\boxed{{{gold}}}") for gold, _ in golds(data_dir)]
    assert all(one.correct for one in found)
    assert sum(one.by == "math-verify" for one in found) == 449


def test_another_items_answer_is_wrong(data_dir):
    pairs = golds(data_dir)
    shifted = zip(pairs, pairs[1:] + pairs[:1], strict=True)
    lucky = [gold for (gold, _), (other, _) in shifted if judge(gold, f"\\boxed{{{other}}}").correct]
    assert len(lucky) < 10  # neighbours that happen to share an answer
