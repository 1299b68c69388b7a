"""The paper's derived numbers follow from its measured ones, and what does not fit together is found."""

import copy
import tomllib
from pathlib import Path

import pytest

from studies.paper import findings, published, recomputed
from studies.paper.findings import attainable, fitting_size
from studies.paper.numbers import Paper

RAW = tomllib.loads((Path(__file__).parents[1] / "studies" / "paper" / "published.toml").read_text())


def altered(sheet: str, path: list[str], column: int, value: float) -> Paper:
    """The paper with one printed number replaced."""
    raw = copy.deepcopy(RAW)
    cells = next(each for each in raw["sheet"] if each["id"] == sheet)["cells"]
    for key in path[:-1]:
        cells = cells[key]
    cells[path[-1]][column] = value
    return Paper.model_validate(raw)


def about(paper: Paper, rule: str) -> list[str]:
    return [finding.what for finding in findings(paper) if finding.rule == rule]


def test_every_derived_number_recomputes():
    checks = recomputed(published())
    assert len(checks) == 360
    assert [check for check in checks if not check.agrees] == []


@pytest.mark.parametrize("column", range(4))
def test_a_wrong_digit_in_a_table_is_found(column):
    values = RAW["sheet"][0]["cells"]["gsm8k"]["void"]
    paper = altered("table1-llada", ["gsm8k", "void"], column, values[column] + 0.5)
    assert about(published(), "wrong-arithmetic") == []
    assert about(paper, "wrong-arithmetic")


def test_mbpp_is_two_test_sets():
    paper = published()
    sizes = {name: fitting_size(paper, name, "mbpp") for name in paper.models if name != "dream-7b-base"}
    assert sizes == {"llada-8b-instruct": 974, "llada-8b-base": 974, "dream-7b-instruct": 500}
    assert about(paper, "test-sets") == ["mbpp has several test sets"]


def test_every_other_score_is_a_count_over_its_test_set():
    scores = [n for n in published().numbers if n.metric == "score" and n.task not in ("mbpp", "mean")]
    assert len(scores) > 300
    assert all(attainable(n.value, published().sizes[n.task][0]) for n in scores)


def test_a_published_number_is_found_by_its_settings():
    settings = {"canvas": 512, "block": 128, "steps": 512}
    (number,) = published().find(("score", "dream-7b-instruct", "void", "gsm8k"), settings)
    assert (number.value, number.source) == (80.89, "Table 1")
    assert published().find(("score", "dream-7b-instruct", "void", "gsm8k"), {**settings, "block": 16}) == []
