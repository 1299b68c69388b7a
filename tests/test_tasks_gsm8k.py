"""GSM8K scoring: the specification's examples, agreement with lm-eval's own filters, gold answers."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voidpad.evaluate.tasks.gsm8k import bare, flexible_extract, score, strict_match

GOLD = {"answer": "He sells 9 eggs for $2.\n#### 18"}


def right(extracted: str, gold: dict = GOLD) -> bool:
    return score(gold, [extracted])["exact_match"] == 1.0


def test_text_after_the_answer_fools_the_flexible_grader_only():
    text = "He has $1,800. #### 18 dollars.\n\nextra 42."
    assert re.findall(r"\$1,800\.|18|42\.", text) == ["$1,800.", "18", "42."]
    assert flexible_extract(text) == "42."
    assert not right(flexible_extract(text))
    assert strict_match(text) == "18"
    assert right(strict_match(text))
    assert right(flexible_extract(text.split("extra")[0]))


def test_punctuation_alone_counts_as_a_number():
    assert flexible_extract("the answer is 18 ...") == "..."
    assert bare("...") == ".."
    assert not right(flexible_extract("the answer is 18 ..."))


def test_a_single_digit_is_found():
    assert flexible_extract("The answer is 5") == "5"


@pytest.mark.parametrize("text", ["", "no numbers here", "one: , and $"])
def test_nothing_found_is_invalid_and_wrong(text):
    assert flexible_extract(text) == strict_match(text) == "[invalid]"
    assert not right("[invalid]")


@pytest.mark.parametrize(
    ("extracted", "correct"),
    [
        ("18", True),
        ("$18", True),
        ("18.", True),
        ("1,8", True),
        ("19", False),
        ("-18", False),
        ("18.0", False),
    ],
)
def test_what_the_comparison_forgives(extracted, correct):
    assert right(extracted) is correct


@settings(deadline=None)  # the first example loads lm-eval
@given(st.text(alphabet="0123456789.,$-# \nabQ", max_size=60), st.integers(-2000, 2000))
def test_graders_agree_with_lm_eval(text, number):
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    flexible = RegexFilter(regex_pattern=r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
    strict = RegexFilter(regex_pattern=r"#### (\-?[0-9\.\,]+)")
    assert flexible.apply([[text]], [{}])[0][0] == flexible_extract(text)
    assert strict.apply([[text]], [{}])[0][0] == strict_match(text)
    gold = f"because of 7\n#### {number:,}"
    theirs = exact_match_hf_evaluate(
        predictions=[flexible_extract(text)],
        references=[gold],
        ignore_case=True,
        regexes_to_ignore=[",", "\\$", "(?s).*#### ", "\\.$"],
    )
    assert right(flexible_extract(text), {"answer": gold}) == bool(theirs["exact_match"])


def test_gold_answers_score_in_full(data_dir):
    lines = (data_dir / "benchmarks/gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines()
    docs = [json.loads(line) for line in lines]
    assert len(docs) == 1319
    for find in (flexible_extract, strict_match):
        assert all(right(find(doc["answer"]), doc) for doc in docs)


def test_off_by_one_is_wrong_for_every_item(data_dir):
    for line in (data_dir / "benchmarks/gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines():
        doc = json.loads(line)
        number = int(bare(doc["answer"]))
        for find in (flexible_extract, strict_match):
            assert not right(find(doc["answer"].rpartition("#### ")[0] + f"#### {number + 1}"), doc)
