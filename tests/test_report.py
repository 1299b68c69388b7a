"""Tables say what the runs say, in the paper's layout, with where every number comes from."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

from runs import drawn, write_run, write_sweep
from studies.paper import findings, published
from studies.paper.__main__ import lines as audit
from voidpad.commands.cli import app
from voidpad.errors import ConfigError, DataError
from voidpad.evaluate import Settings
from voidpad.experiments.report.figures import plots
from voidpad.experiments.report.layout import Bars, Blocks, Details, Heat, Lines, Tasks
from voidpad.experiments.report.origins import provenance
from voidpad.experiments.report.pages import Report, as_html, as_latex, as_markdown, report
from voidpad.experiments.report.published import read_published
from voidpad.experiments.report.records import read as read_runs
from voidpad.experiments.report.render import markdown, md, tex
from voidpad.experiments.report.report_metrics import METRICS, Value, mean_interval, ranked, task_value
from voidpad.experiments.report.tables import build, comparison
from voidpad.experiments.sweep_recipe import SweepCell, cells, read

ROOT = Path(__file__).parent
PUBLISHED = ROOT.parent / "studies" / "paper" / "published.toml"
SWEEPS = ROOT.parent / "voidpad" / "recipes" / "sweeps"
PAPER = ("paper-table1", "paper-table3", "paper-thresholds")
TINY = ("tiny-table1", "tiny-table3", "tiny-table4", "tiny-table5", "tiny-table6", "tiny-thresholds")


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
    at = dict(cell.settings.fields)
    found = published().find(("score", cell.model, cell.method, cell.task.removesuffix("_974")), at)
    right = round(found[0].value * size / 100) if found else size // 2
    return [0.5 * index / size if index < right else 0.6 + 0.4 * index / size for index in range(size)]


def records(out, name):
    (source,) = read_runs(out / f"{name}.sweep.json", published())
    return source.records


def cells_of(table, *head):
    (row,) = [row for row in table.rows if row.head == head]
    return dict(zip(table.columns, row.values, strict=True))


# ----- the tables are the paper's -----------------------------------------------------------------------------


def test_table_1_has_a_row_per_task_and_method_and_the_means(paper_runs):
    table = build(Blocks(title="t"), records(paper_runs, "paper-table1"))
    assert table.columns == ("block 64", "block 128", "block 512", "mean", "paper")
    assert len(table.rows) == 2 * (4 + 1) * 3
    row = cells_of(table, "LLaDA-8B-Instruct", "gsm8k", "void")
    assert [row[name].text for name in table.columns] == ["78.00", "78.00", "79.00", "78.33", "78.27"]
    overall = cells_of(table, "Dream-7B-Instruct", "mean", "void")
    assert overall["mean"].number == pytest.approx(60.21, abs=0.25)
    assert overall["paper"].number == pytest.approx(60.21, abs=0.01)


def test_the_best_value_of_a_column_is_bold_and_the_second_underlined(paper_runs):
    table = build(Blocks(title="t"), records(paper_runs, "paper-table1"))
    places = {
        method: cells_of(table, "LLaDA-8B-Instruct", "gsm8k", method)["mean"].place
        for method in ("original", "rainbow", "void")
    }
    assert places == {"void": 1, "rainbow": 2, "original": 0}
    assert "**78.33** [69.3, 85.3]" in markdown(table)
    assert "<u>71.67</u>" in markdown(table)


def test_table_2_averages_over_blocks_and_reduces_against_the_canvas(paper_runs):
    table = build(Tasks(title="t", metrics=("nfe", "nfe_reduction")), records(paper_runs, "paper-table1"))
    nfe = cells_of(table, "Dream-7B-Instruct", "NFE", "void")
    saved = cells_of(table, "Dream-7B-Instruct", "NFE reduction (%)", "void")
    for task in ("gsm8k", "math500", "humaneval"):
        assert saved[task].number == pytest.approx(100 * (1 - nfe[task].number / 512))
    mine = [
        r for r in records(paper_runs, "paper-table1") if (r.model, r.method) == ("dream-7b-instruct", "void")
    ]
    assert nfe["gsm8k"].number == pytest.approx(
        fmean(r.result["passes_decode"] for r in mine if r.task == "gsm8k")
    )
    assert nfe["paper"].number == pytest.approx(fmean([157.3, 371.0, 300.7, 78.7]), abs=0.1)
    assert nfe["mbpp_974"].text == ""


def test_table_3_speed_ups_are_against_daedal_and_their_mean_is_geometric(paper_runs):
    layout = Tasks(title="t", metrics=("speedup",), where={"method": ["daedal", "rho-eos", "void-expansion"]})
    table = build(layout, records(paper_runs, "paper-table3"))
    ours = cells_of(table, "LLaDA-8B-Instruct", "Wall speed-up", "void-expansion")
    by_task = [ours[task].number for task in ("gsm8k", "math500", "humaneval", "mbpp_974")]
    assert ours["mean"].number == pytest.approx((by_task[0] * by_task[1] * by_task[2] * by_task[3]) ** 0.25)
    assert ours["paper"].number == pytest.approx(2.12, abs=0.005)
    base = cells_of(table, "LLaDA-8B-Instruct", "Wall speed-up", "daedal")
    assert {value.number for value in base.values()} == {1.0}


def test_a_row_missing_one_task_has_no_mean(paper_runs):
    some = [r for r in records(paper_runs, "paper-table1") if (r.task, r.method) != ("math500", "void")]
    table = build(Blocks(title="t"), some)
    assert cells_of(table, "LLaDA-8B-Instruct", "mean", "void")["mean"].number is None
    assert cells_of(table, "LLaDA-8B-Instruct", "mean", "rainbow")["mean"].number is not None
    assert table.notes == ("8 values are not known yet, or were not timed alone.",)


def test_runs_that_share_a_wall_time_have_none_of_their_own(tmp_path, paper_runs):
    cell = next(c for c in cells(read(SWEEPS / "paper-table3.toml")) if c.method == "daedal")
    run = write_run(cell, tmp_path)
    results = json.loads((run / "results.json").read_text())
    results["tasks"]["math500"] = results["tasks"]["gsm8k"]
    (run / "results.json").write_text(json.dumps(results))
    (source,) = read_runs(run)
    assert [record.wall for record in source.records] == [None, None]


# ----- paper against measured ---------------------------------------------------------------------------------


def test_measured_scores_stand_beside_every_published_one(paper_runs):
    sources = [
        source for name in PAPER for source in read_runs(paper_runs / f"{name}.sweep.json", published())
    ]
    table = comparison(list({r.folder: r for source in sources for r in source.records}.values()))
    rows = [row for row in table.rows if row.head[2] == "score"]
    sheets = ("table1-llada", "table1-dream", "table3a", "fig-thresholds-instruct-score")
    counted = [
        n for n in published().numbers if n.metric == "score" and n.sheet in sheets and n.task != "mean"
    ]
    assert len(rows) >= len(counted)
    first = [row for row in rows if row.head[0] in ("Table 1", "Table 3a")]
    assert all(abs(row.values[2].number) <= 0.5 for row in first)
    assert table.notes[0].endswith("published scores lie inside our 95 % interval.")
    outside = [
        row
        for row in rows
        if not (row.values[0].interval[0] <= row.values[1].number <= row.values[0].interval[1])
    ]
    inside, judged = map(int, re.match(r"(\d+) of (\d+) ", table.notes[0]).groups())
    assert judged - inside == len(outside)
    assert len(table.notes) == (2 if outside else 1)


def test_published_scores_outside_the_interval_are_named(paper_runs):
    (source,) = read_runs(paper_runs / "paper-table3.sweep.json", published())
    mine = [r for r in source.records if (r.method, r.task) == ("void", "gsm8k")]
    moved = [replace(r, result={**r.result, "correct": 0}) for r in mine]
    count, named = comparison(moved).notes
    printed = published().find(("score", "llada-8b-instruct", "void", "gsm8k"), mine[0].at)
    assert count.startswith(f"0 of {len(printed)} ")
    assert named.startswith("Outside it: llada-8b-instruct void gsm8k ")
    assert re.findall(r"\((.*?)\)", named) == [f"{-number.value:+.1f}" for number in printed]
    low, high = task_value(moved, METRICS["score"]).interval
    for number in printed:
        assert f": 0.00 [{low:.1f}, {high:.1f}] against {number.value:g} ({-number.value:+.1f})" in named


def test_the_same_generations_have_the_scores_of_other_graders(paper_runs):
    (record,) = [
        r for r in records(paper_runs, "paper-table1") if (r.model, r.method, r.task, r.at["block"])
        == ("llada-8b-instruct", "void", "gsm8k", 64)
    ]  # fmt: skip
    assert record.graded("strict-match").result["filter"] == "strict-match"
    assert record.graded("no such grader") == record


def test_parity_runs_are_reported_by_the_authors_graders(paper_runs):
    graders = {r.task: r.result["filter"] for r in records(paper_runs, "paper-table1")}
    code = dict.fromkeys(("math500", "humaneval", "mbpp_974", "mbpp"), "authors")
    assert graders == {"gsm8k": "flexible-extract", **code}


def test_models_the_paper_does_not_have_get_no_paper_column(tiny_runs):
    table = build(Blocks(title="t"), records(tiny_runs, "tiny-table1"))
    assert "paper" not in table.columns
    assert comparison(records(tiny_runs, "tiny-table1")) is None


# ----- the built-in model's report, whole ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sections"), [("md", slice(0, -1)), ("tex", slice(1, 2)), ("html", slice(1, 2))]
)
def test_the_report_of_the_built_in_models_is_as_recorded(tiny_page, kind, sections):
    """VOIDPAD_SNAPSHOTS=write records it anew; the difference is then reviewed like code."""
    page = Report(tiny_page.title, tiny_page.sections[sections])
    draw = {"md": as_markdown, "tex": as_latex, "html": as_html}[kind]
    text = re.sub(r"base64,[A-Za-z0-9+/=]+", "base64,...", draw(page))
    path = ROOT / "snapshots" / f"tiny.{kind}"
    if os.environ.get("VOIDPAD_SNAPSHOTS") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_built_in_report_has_tables_1_to_6(tiny_page):
    shown = " ".join(table.reference for section in tiny_page.sections for table in section.tables)
    assert all(f"Table {name}" in shown for name in ("1", "2", "3a", "3b", "4", "5", "6"))


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
    assert page.sections[0].notes == ("tiny-table4: 5 cells have not finished.",)
    assert "–" in as_markdown(page)


# ----- loose runs ----------------------------------------------------------------------------------------------


def test_run_folders_without_a_recipe_are_named_by_their_settings(tmp_path):
    found = [c for c in cells(read(SWEEPS / "paper-table3.toml")) if c.task == "gsm8k"]
    for cell in found:
        write_run(cell, tmp_path)
    table = report([tmp_path / "cells"]).sections[0].tables[0]
    base, adapted = (
        "GSAI-ML/LLaDA-8B-Instruct",
        "GSAI-ML/LLaDA-8B-Instruct + runs/llada-8b-instruct-void/model",
    )
    assert {(row.head[0], row.head[2]) for row in table.rows} == {
        *((base, method) for method in ("original", "rho-eos", "daedal")),
        *((adapted, method) for method in ("void", "void-expansion")),
    }


def test_a_run_with_a_cache_is_another_method(tmp_path):
    exact = next(c for c in cells(read(SWEEPS / "tiny-table4.toml")) if c.settings.plan == "void-expansion")
    cached = replace(exact, settings=replace(exact.settings, cache="dual"))
    (first,), (second,) = (read_runs(write_run(cell, tmp_path))[0].records for cell in (exact, cached))
    assert (first.method, first.get("cache")) == ("void-expansion", None)
    assert (second.method, second.get("cache")) == ("void-expansion cache=dual", "dual")
    assert 'cache=null / "dual"' in dict(provenance([first, second]))["Settings"]


def test_every_approximation_is_another_method(tmp_path):
    exact = next(c for c in cells(read(SWEEPS / "tiny-table4.toml")) if c.settings.plan == "void-expansion")
    fields = {**exact.settings.fields, "threshold": 0.9, "trim": True}
    both = replace(exact.settings, merge=False, quantize="8bit", fields=fields)
    (record,) = read_runs(write_run(replace(exact, settings=both), tmp_path))[0].records
    assert record.method == "void-expansion threshold=0.9 trim=True quantize=8bit"


@pytest.mark.parametrize(
    ("content", "said"), [("{", "damaged"), ('{"version": 9}', "format version 9"), ("[]", "damaged")]
)
def test_a_damaged_file_is_named(tmp_path, content, said):
    run = write_run(cells(read(SWEEPS / "paper-table3.toml"))[0], tmp_path)
    (run / "results.json").write_text(content)
    with pytest.raises(DataError, match=said):
        report([run])


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError, match="no run here"):
        report([tmp_path])


# ----- the command ---------------------------------------------------------------------------------------------


def test_the_command_writes_all_formats_and_figures(tmp_path):
    write_sweep(SWEEPS / "tiny-table4.toml", tmp_path / "runs")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.md", "report.tex", "report.html"}
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--no-intervals"])
    assert shown.output.startswith("# Short initial canvas: Dream")
    assert "[" not in shown.output.splitlines()[8]


def test_published_numbers_come_from_a_file_that_the_user_names(tmp_path):
    write_sweep(SWEEPS / "paper-table4.toml", tmp_path / "runs", size=20)
    alone = CliRunner().invoke(app, ["report", str(tmp_path / "runs")])
    beside = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--published", str(PUBLISHED)])
    assert alone.exit_code == beside.exit_code == 0, alone.output + beside.output
    assert "Paper versus measured" not in alone.output
    assert "Dream-7B" not in alone.output
    assert "Paper versus measured" in beside.output
    assert "Dream-7B-Instruct" in beside.output


@pytest.mark.parametrize(
    ("content", "said"),
    [("=", "not TOML"), ("models = 3", "models: Input should be"), (None, "cannot be read")],
)
def test_a_file_of_published_numbers_that_cannot_be_read_is_named(tmp_path, content, said):
    if content is not None:
        (tmp_path / "p.toml").write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_published(tmp_path / "p.toml")


def test_the_audit_lists_the_papers_disagreements():
    shown = "\n".join(audit())
    assert "360 of 360 derived numbers" in shown
    assert all(f"## {finding.rule}\n" in shown for finding in findings(published()))
    assert shown.count("\n- ") == len(findings(published()))


def test_the_command_needs_something_to_report():
    assert CliRunner().invoke(app, ["report"]).exit_code == 2


# ----- parts ---------------------------------------------------------------------------------------------------


def test_values_that_print_alike_share_a_place():
    column = [Value(1.001), Value(1.004), Value(0.5), Value(None), Value(0.25)]
    assert [value.place for value in ranked(column, +1)] == [1, 1, 2, 0, 0]
    assert [value.place for value in ranked(column, -1)] == [0, 0, 2, 0, 1]
    assert [value.place for value in ranked(column, 0)] == [0] * 5


def test_a_mean_of_tasks_is_surer_than_a_task():
    task = Value(50.0, interval=(40.0, 60.0))
    low, high = mean_interval([task] * 4)
    assert (low, high) == pytest.approx((45.0, 55.0))
    assert mean_interval([task, Value(50.0)]) is None


def test_every_metric_is_read_from_a_real_results_file(tmp_path):
    run = write_run(cells(read(SWEEPS / "paper-table1.toml"))[0], tmp_path, draw=drawn)
    (source,) = read_runs(run)
    assert all(metric.of(source.records[0]) is not None for metric in METRICS.values())


def test_provenance_names_what_made_the_numbers(paper_runs):
    facts = dict(provenance(records(paper_runs, "paper-table1")))
    assert facts["Commit"] == "0123456789ab"
    assert "torch 2.13.0" in facts["Versions"]
    assert facts["Device"] == "cpu"
    assert "gsm8k 100 of 200" in facts["Test sets"]
    assert "not counted" in facts["Passes"]
    assert "void@authors (canvas 512, block 64/128/512)" in facts["Plans"]
    assert 'parity="llada" / "dream"' in facts["Settings"]


def test_the_device_says_how_float32_products_were_rounded(paper_runs):
    (first, *_) = records(paper_runs, "paper-table1")
    facts = {"device": "NVIDIA H200", "device_count": 2, "tf32": True}
    rounded = replace(first, provenance={**first.provenance, **facts})
    assert dict(provenance([rounded]))["Device"] == "NVIDIA H200 x 2, float32 products in TF32"


def test_latex_text_is_escaped():
    assert (
        tex(r"a_b 5% {x} \ – ~^") == r"a\_b 5\% \{x\} \textbackslash{} -- \textasciitilde{}\textasciicircum{}"
    )


def test_markdown_text_is_escaped():
    assert md("a_b _c_ 5*6 `d` x|y <e> [f] [g](h)\n\\") == r"a_b \_c\_ 5\*6 \`d\` x\|y \<e> [f] [g\](h)\\n\\"


HOSTILE_NAME = (
    "a|b`c`\n# d & e % _f_ #g $h$ {i} ~j ^k \\l <script>alert(1)</script> ![m](n)\x1b[31m\x00\u202e"
)


def test_no_name_changes_a_report(tmp_path):
    """Names of models come from recipes and folders of other people."""
    for block in (32, 64):
        fields = {"block": block, "canvas": 64}
        cell = SweepCell(
            "m", "x", Settings(HOSTILE_NAME, ("tiny_steps",), "void", fields, adapter=HOSTILE_NAME)
        )
        write_run(cell, tmp_path, size=4)
    page = report([tmp_path / "cells"])
    text, latex, html = as_markdown(page), as_latex(page), as_html(page)
    shown = text.splitlines()
    assert all(line.isprintable() for part in (text, latex, html) for line in part.splitlines())
    assert not any(line.startswith("# d") for line in shown)
    assert "<script" not in text.replace("\\<script", "")
    assert "<script" not in html
    assert "`" not in text.replace("\\`", "")
    assert tex(HOSTILE_NAME) in latex
    tables = [line for line in shown if line.startswith("|")]
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    heads = [number for number, line in enumerate(tables) if line.startswith("| ---")]
    assert len(heads) >= 2
    for at, head in enumerate(heads):
        rows = bars[head - 1 : (heads[at + 1] - 1 if at + 1 < len(heads) else None)]
        assert len(set(rows)) == 1


@pytest.mark.parametrize(
    "layout",
    [
        Bars(title="Bars", metric="wall"),
        Bars(title="Log bars", metric="nfe", log=True),
        Lines(title="Lines", across="tau_nonvoid", where={"method": "void-expansion"}),
        Heat(title="Heat", where={"method": "void-expansion"}),
    ],
    ids=lambda layout: layout.title,
)
def test_figures_are_drawn_the_same_every_time(paper_runs, layout):
    found = records(paper_runs, "paper-thresholds")
    (first,), (second,) = plots(layout, found), plots(layout, found)
    assert first.svg == second.svg
    assert layout.title in first.svg.decode()
    assert first.pdf.startswith(b"%PDF")


def test_a_heat_map_shows_the_number_of_every_cell(paper_runs):
    found = records(paper_runs, "paper-thresholds")
    (plot,) = plots(Heat(title="Heat", where={"method": "void-expansion"}), found)
    for record in (r for r in found if r.method == "void-expansion"):
        assert f"{100 * record.result['correct'] / record.result['n']:.2f}" in plot.svg.decode()


def test_details_list_probes_canvas_and_shares(tiny_runs):
    table = build(Details(title="d"), records(tiny_runs, "tiny-table3"))
    assert {"Probes", "All passes", "Canvas", "At cap (%)", "Without EOS (%)"} <= set(table.columns)
    assert len(table.rows) == 20
