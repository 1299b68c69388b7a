"""Tables say what the runs say, with where every number comes from."""

import json
import os
import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest
from typer.testing import CliRunner

from runs import write_run, write_sweep
from studies import intervals
from studies.latex import document, tex
from studies.paper import published
from studies.paper.measured import pairs
from voidpad.commands.cli import app
from voidpad.errors import DataError
from voidpad.evaluate import EvalConfig
from voidpad.experiments.report.figures import plots
from voidpad.experiments.report.frame import frame, graded, read, select
from voidpad.experiments.report.layout import METRICS, FigureLayout, TableLayout
from voidpad.experiments.report.pages import as_html, as_markdown, as_verdicts, origins, report
from voidpad.experiments.report.tables import build
from voidpad.experiments.sweep_recipe import SweepCell, cells
from voidpad.experiments.sweep_recipe import read as read_recipe

ROOT = Path(__file__).parent
SWEEPS = ROOT.parent / "voidpad" / "recipes" / "sweeps"
PAPER = ("paper-table1", "paper-table3", "paper-thresholds")
TINY = ("tiny-table1", "tiny-table3", "tiny-table4", "tiny-table5", "tiny-table6", "tiny-thresholds")
BLOCKS = TableLayout(title="t", index=("model", "task", "method"), columns="block")
LLADA, DREAM = "llada-8b-instruct", "dream-7b-instruct"


@pytest.fixture(scope="module")
def paper_runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    for name in PAPER:
        write_sweep(SWEEPS / f"{name}.toml", out, draw=as_published, size=100)
    return out


@pytest.fixture(scope="module")
def tiny_runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny")
    for name in TINY:
        write_sweep(SWEEPS / f"{name}.toml", out)
    return out


@pytest.fixture(scope="module")
def tiny_page(tiny_runs):
    return report([tiny_runs])


def as_published(cell, size):
    """Examples whose scores come out as the paper's, where it prints one; half right for every grader elsewhere."""
    at = dict(cell.config.fields)
    found = published().find(("score", cell.model, cell.method, cell.task.removesuffix("_974")), at)
    right = round(found[0].value * size / 100) if found else size // 2
    return [0.5 * index / size if index < right else 0.6 + 0.4 * index / size for index in range(size)]


def rows_of(out, name) -> pd.DataFrame:
    (source,) = read(out / f"{name}.sweep.json")
    return source.frame


def cells_of(table, *head):
    return table.rows[head]


# ----- the tables are the paper's -----------------------------------------------------------------------------


def test_table_2_averages_over_blocks_and_reduces_against_the_canvas(paper_runs):
    rows = rows_of(paper_runs, "paper-table1")
    table = build(TableLayout(title="t", values=("nfe", "nfe_reduction")), rows)
    nfe = cells_of(table, DREAM, "NFE", "void")
    saved = cells_of(table, DREAM, "NFE reduction (%)", "void")
    for task in ("gsm8k", "math500", "humaneval"):
        assert saved[task].number == pytest.approx(100 * (1 - nfe[task].number / 512))
    mine = select(rows, {"model": DREAM, "method": "void", "task": "gsm8k"})
    assert nfe["gsm8k"].number == pytest.approx(fmean(mine["nfe"]))
    assert nfe["mbpp_974"].text == ""


def test_table_3_speed_ups_are_against_daedal_and_their_mean_is_geometric(paper_runs):
    layout = TableLayout(
        title="t", values=("speedup",), where={"method": ["daedal", "rho-eos", "void-expansion"]}
    )
    table = build(layout, rows_of(paper_runs, "paper-table3"))
    ours = cells_of(table, LLADA, "Wall speed-up", "void-expansion")
    a, b, c, d = (ours[task].number for task in ("gsm8k", "math500", "humaneval", "mbpp_974"))
    assert ours["mean"].number == pytest.approx((a * b * c * d) ** 0.25)
    base = cells_of(table, LLADA, "Wall speed-up", "daedal")
    assert {value.number for value in base.values()} == {1.0}


def test_a_row_missing_one_task_has_no_mean(paper_runs):
    rows = rows_of(paper_runs, "paper-table1")
    table = build(BLOCKS, rows[~((rows["task"] == "math500") & (rows["method"] == "void"))])
    assert cells_of(table, LLADA, "mean", "void")["mean"].number is None
    assert cells_of(table, LLADA, "mean", "rainbow")["mean"].number is not None
    assert table.notes == ("8 values are not known yet, or were not timed alone.",)


def test_runs_that_share_a_wall_time_have_none_of_their_own(tmp_path):
    cell = next(c for c in cells(read_recipe(SWEEPS / "paper-table3.toml")) if c.method == "daedal")
    run = write_run(cell, tmp_path)
    results = json.loads((run / "results.json").read_text())
    results["tasks"]["math500"] = results["tasks"]["gsm8k"]
    (run / "results.json").write_text(json.dumps(results))
    assert frame([run])["wall"].isna().all()


def test_adaptive_lengths_have_no_share_of_a_canvas(tiny_runs):
    """The length rule says whether `steps` counts the passes of a whole canvas."""
    rows = rows_of(tiny_runs, "tiny-table3")
    fixed = rows["nfe_reduction"].notna()
    assert set(rows[fixed]["method"]) == {"original", "void"}


# ----- paper against measured ---------------------------------------------------------------------------------


def test_measured_scores_stand_beside_every_published_one(paper_runs):
    found = [pair for pair in pairs(frame([paper_runs])) if pair.number.metric == "score"]
    sheets = ("table1-llada", "table1-dream", "table3a", "fig-thresholds-instruct-score")
    wanted = [
        n for n in published().numbers if n.metric == "score" and n.sheet in sheets and n.task != "mean"
    ]
    assert {pair.number for pair in found} >= set(wanted)
    first = [pair for pair in found if pair.number.source in ("Table 1", "Table 3a")]
    assert all(abs(pair.difference) <= 0.5 for pair in first)
    assert all(pair.inside for pair in first)


def test_the_same_generations_have_the_scores_of_other_graders(paper_runs):
    rows = select(rows_of(paper_runs, "paper-table1"), {"task": "gsm8k", "method": "void", "block": 64})
    other = graded(rows, "strict-match")
    assert set(other["filter"]) == {"strict-match"}
    assert list(other["score"]) == [100 * one["strict-match"] / 100 for one in rows["scores"]]
    assert graded(rows, "no such grader").equals(rows)


def test_parity_runs_are_reported_by_the_authors_graders(paper_runs):
    rows = rows_of(paper_runs, "paper-table1")
    code = dict.fromkeys(("math500", "humaneval", "mbpp_974", "mbpp"), "authors")
    assert dict(zip(rows["task"], rows["filter"], strict=True)) == {"gsm8k": "flexible-extract", **code}


# ----- whole reports ------------------------------------------------------------------------------------------


def test_the_report_of_the_built_in_models_is_as_recorded(tiny_page):
    """VOIDPAD_SNAPSHOTS=write records it anew; the difference is then reviewed like code."""
    text = as_markdown(replace(tiny_page, sections=tiny_page.sections[:-1]))
    text = re.sub(r"(?m)^- (?!Runs|Plans).*\n", "", text)  # the other facts have a test of their own
    path = ROOT / "snapshots" / "tiny.md"
    if os.environ.get("VOIDPAD_SNAPSHOTS") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_html_needs_nothing_from_outside(tiny_page):
    text = as_html(tiny_page)
    assert set(re.findall(r'(?:src|href)="([^:"]*:?)', text)) == {"data:"}
    assert "<script" not in text


def test_a_half_finished_sweep_is_reported_with_what_is_missing(tmp_path):
    found = write_sweep(SWEEPS / "tiny-table4.toml", tmp_path)
    for cell in found[:5]:
        (tmp_path / cell.folder / "results.json").unlink()
    page = report([tmp_path])
    (table,) = page.sections[0].tables
    assert len(table.rows) == 6
    assert cells_of(table, "tiny", "Score (%)", "original")["mean"].number is None
    assert cells_of(table, "tiny", "Score (%)", "void-expansion")["mean"].number is not None
    assert page.sections[0].notes == ["tiny-table4: 5 cells have not finished."]
    assert "–" in as_markdown(page)


def test_intervals_follow_from_the_verdicts_that_a_report_keeps(tmp_path):
    """`python -m studies.intervals` prints what the tables say."""
    recipe = SWEEPS / "tiny-approximations.toml"
    found = write_sweep(recipe, tmp_path, size=30)
    page = report([tmp_path])
    (tmp_path / "v.gz").write_bytes(as_verdicts(page))
    lines = intervals.read(tmp_path / "v.gz")
    assert len(lines) == len(found)
    assert {len(line["score"]) for line in lines} == {30}
    table = page.sections[0].tables[0]
    shown = {names[0]: cells["mean"] for names, cells in table.rows.items()}
    computed = {line.split(" | ")[1]: line.split(" | ")[3] for line in intervals.means(lines)}
    for method, value in shown.items():
        low, high = value.interval
        assert computed[method] == f"{value.text} [{low:.1f}, {high:.1f}]"


# ----- loose runs ----------------------------------------------------------------------------------------------


def test_run_folders_without_a_recipe_are_named_by_their_settings(tmp_path):
    found = [c for c in cells(read_recipe(SWEEPS / "paper-table3.toml")) if c.task == "gsm8k"]
    for cell in found:
        write_run(cell, tmp_path)
    table = report([tmp_path / "cells"]).sections[0].tables[0]
    base = "GSAI-ML/LLaDA-8B-Instruct"
    adapted = f"{base} + runs/llada-8b-instruct-void/model"
    assert {(names[0], names[2]) for names in table.rows} == {
        *((base, method) for method in ("original", "rho-eos", "daedal")),
        *((adapted, method) for method in ("void", "void-expansion")),
    }


def test_every_approximation_is_another_method(tmp_path):
    every = cells(read_recipe(SWEEPS / "tiny-table4.toml"))
    exact = next(c for c in every if c.config.plan == "void-expansion")
    fields = {**exact.config.fields, "threshold": 0.9, "trim": True}
    changes = [{}, {"cache": "dual"}, {"merge": False, "quantize": "8bit", "fields": fields}]
    runs = [write_run(replace(exact, config=exact.config.updated(**one)), tmp_path) for one in changes]
    rows = frame(runs)
    assert list(rows["method"]) == [
        "void-expansion",
        "void-expansion cache=dual",
        "void-expansion threshold=0.9 trim=True quantize=8bit",
    ]
    assert 'cache=null / "dual"' in dict(origins(rows[:2]))["Settings other than the defaults"]


@pytest.mark.parametrize("content", ["{", '{"version": 9}', '{"version": 3}'])
def test_a_damaged_file_is_named_and_a_folder_without_runs_refused(tmp_path, content):
    with pytest.raises(DataError, match="no run here"):
        report([tmp_path])
    run = write_run(cells(read_recipe(SWEEPS / "paper-table3.toml"))[0], tmp_path)
    (run / "results.json").write_text(content)
    with pytest.raises(DataError, match=r"results\.json"):
        report([run])


# ----- the command ---------------------------------------------------------------------------------------------


def test_the_command_writes_all_formats_and_figures(tmp_path):
    found = write_sweep(SWEEPS / "tiny-table4.toml", tmp_path / "runs")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    names = {"report.md", "report.html", "report.csv", "verdicts.jsonl.gz"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    table = pd.read_csv(tmp_path / "out" / "report.csv")
    assert len(table) == len(found)
    assert set(METRICS) - {"tokens_per_pass", "speedup"} <= set(table.columns)
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--no-intervals"])
    assert shown.output.startswith("# Short initial canvas: Dream")
    assert shown.output.count("Short initial canvas: Dream") == 1
    assert "[" not in shown.output.splitlines()[6]


# ----- parts ---------------------------------------------------------------------------------------------------


def test_provenance_names_what_made_the_numbers(paper_runs):
    rows = rows_of(paper_runs, "paper-table1")
    facts = dict(origins(rows))
    assert "commit 0123456789ab" in facts["Made with"]
    assert "torch 2.13.0" in facts["Made with"]
    assert "device cpu" in facts["Made with"]
    assert "gsm8k 100 of 200" in facts["Test sets"]
    assert "void@authors (canvas 512, block 64/128/512)" in facts["Plans"]
    assert 'parity="llada" / "dream"' in facts["Settings other than the defaults"]
    rounded = {"device": "NVIDIA H200", "device_count": 2, "tf32": True}
    first = rows[:1].assign(provenance=[{**rows["provenance"][0], **rounded}])
    assert "device NVIDIA H200, device_count 2, tf32 True" in dict(origins(first))["Made with"]


HOSTILE_NAME = (
    "a|b`c`\n# d & e % _f_ #g $h$ {i} ~j ^k \\l <script>alert(1)</script> ![m](n)\x1b[31m\x00\u202e"
)


def test_no_name_changes_a_report(tmp_path):
    """Names of models come from recipes and folders of other people."""
    for block in (32, 64):
        config = EvalConfig(
            model=HOSTILE_NAME,
            tasks=("tiny_steps",),
            plan="void",
            fields={"block": block, "canvas": 64},
            adapter=HOSTILE_NAME,
        )
        write_run(SweepCell("m", "x", config), tmp_path, size=4)
    page = report([tmp_path / "cells"])
    text, latex, html = as_markdown(page), document([tmp_path / "cells"]), as_html(page)
    shown = text.splitlines()
    assert all(line.isprintable() for part in (text, latex, html) for line in part.splitlines())
    assert not any(line.startswith("# d") for line in shown)
    assert "<script" not in text.replace("\\<script", "")
    assert "<script" not in html
    assert "`" not in text.replace("\\`", "")
    assert tex(HOSTILE_NAME) in latex
    tables = [list(rows) for bar, rows in groupby(shown, lambda line: line.startswith("|")) if bar]
    assert len(tables) >= 2
    for rows in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


@pytest.mark.parametrize(
    "layout",
    [
        FigureLayout(kind="bars", title="Bars", metric="wall"),
        FigureLayout(kind="bars", title="Log bars", metric="nfe", log=True),
        FigureLayout(
            kind="lines", title="Lines", x="tau_nonvoid", by="task", where={"method": "void-expansion"}
        ),
        FigureLayout(
            kind="heat", title="Heat", x="tau_nonvoid", by="tau_gap", where={"method": "void-expansion"}
        ),
    ],
    ids=lambda layout: layout.title,
)
def test_figures_are_drawn_the_same_every_time(paper_runs, layout):
    found = rows_of(paper_runs, "paper-thresholds")
    (first,), (second,) = plots(layout, found), plots(layout, found)
    assert first.svg == second.svg
    assert layout.title in first.svg.decode()
    if layout.kind == "heat":  # it shows the number of every cell
        for score in found[found["method"] == "void-expansion"]["score"]:
            assert f"{score:.2f}" in first.svg.decode()
