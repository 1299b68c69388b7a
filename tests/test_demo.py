"""The built-in models do what the paper says: the demo's small set, with room for another machine's rounding."""

import html.parser

import pytest

from voidpad import load
from voidpad.builtin.demo import CANVAS, Arm, cells, published, run, telling
from voidpad.builtin.outputs import Cell
from voidpad.commands import demo as command
from voidpad.sandbox import Sandbox

WIDE = {"block": CANVAS, "canvas": CANVAS, "stop": "eos"}


@pytest.fixture(scope="module")
def arms():
    wanted = [Cell("original", "tiny-instruct", "original", WIDE), Cell("void", "tiny-void", "void", WIDE)]
    with Sandbox(workers=2) as sandbox:
        yield {arm.cell.name: arm for arm in run(wanted, 1, sandbox)}


def test_eos_padding_overflows_at_block_equal_to_the_canvas(arms):
    summary = arms["original"].summary
    assert summary["mean"] <= 0.5
    assert summary["answer_tokens"] <= 30
    assert summary["passes_decode"] >= 0.9 * CANVAS


def test_void_padding_answers_in_full_and_stops(arms):
    summary = arms["void"].summary
    assert summary["mean"] >= 0.75
    assert summary["answer_tokens"] >= 40
    assert summary["passes_decode"] <= CANVAS / 2


def test_built_in_models_differ_in_padding_alone():
    named = {name: load(name) for name in ("tiny-instruct", "tiny-eos", "tiny-rainbow", "tiny-void")}
    recipes = [
        {**named[n].card.recipe, "padding": None, "run": None}
        for n in ("tiny-eos", "tiny-rainbow", "tiny-void")
    ]
    assert recipes[0] == recipes[1] == recipes[2]
    assert [model.card.padding for model in named.values()] == ["eos", "eos", "rainbow", "void"]
    assert len({model.roles for model in named.values()}) == 1


def test_shipped_results_meet_the_targets():
    known = {key: cell["mean"] for key, cell in published().items()}
    assert known["original / 32"] >= 0.85
    assert known["void / 32"] >= max(0.85, known["original / 32"] - 0.02)
    for name in ("original", "eos control"):
        assert known[f"{name} / {CANVAS}"] <= 0.6 * known[f"{name} / 32"]
    assert known[f"void / {CANVAS}"] >= 0.95 * known["void / 32"]
    assert known[f"void, no ban / {CANVAS}"] <= 0.6 * known["void, no ban / 32"]
    assert known["void, expanding / 16"] >= known["void / 32"] - 0.02
    assert known["void, canvas 48 / 16"] <= known["void / 32"] - 0.2
    assert published()["void / 32"]["passes_decode"] <= CANVAS / 2


def test_the_report_is_one_page_with_the_example_as_text(arms):
    rows = [Arm(arm.cell, arm.records, arm.right, 1.0) for arm in arms.values()]
    text = command.page(rows, {"prompt": "<img src=x onerror=alert(1)>"}, 1)
    tags = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))
    parser.feed(text)
    images = [attrs["src"] for tag, attrs in tags if tag == "img"]
    assert len(images) == 1
    assert images[0].startswith("data:image/png;base64,")


@pytest.mark.slow
def test_the_whole_demo(tmp_path, capsys):
    command.demo(problems=3, full=False, report=tmp_path / "demo.html", device="cpu", weak_sandbox=False)
    assert "data:image/png" in (tmp_path / "demo.html").read_text()
    with Sandbox(workers=2) as sandbox:
        found = list(run(cells((32, CANVAS)), 3, sandbox))
    means = {(arm.cell.name, arm.block): arm.summary["mean"] for arm in found}
    assert means["original", 32] >= 0.75 >= 0.5 >= means["original", CANVAS]
    assert means["void", CANVAS] >= means["void", 32] - 0.1 >= 0.65
    assert telling(found, 3) is not None
