"""A whole report: the tables and figures of some folders, as Markdown, one HTML file, CSV and verdicts; or two runs
compared item by item."""

from __future__ import annotations

import gzip
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt

from voidpad.errors import ConfigError, DataError, printable
from voidpad.evaluate.config import EvalConfig
from voidpad.evaluate.folder import read_run
from voidpad.evaluate.intervals import mcnemar, paired_bootstrap
from voidpad.experiments.report.figures import Plot, plots
from voidpad.experiments.report.frame import Source, plan_label, read, select, verdicts
from voidpad.experiments.report.layout import FigureLayout, Layout, TableLayout
from voidpad.experiments.report.tables import Table, build

DETAILS = TableLayout(
    title="Everything that was measured",
    index=("model", "task", "method", "setting", "examples"),
    columns=None,
    values=("score", "nfe", "probes", "passes", "canvas", "answer", "at_cap", "without_eos", "wall"),
)


@dataclass(frozen=True)
class Section:
    """The tables and figures of one sweep, or of the runs no sweep describes."""

    title: str
    tables: Sequence[Table]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    title: str
    sections: Sequence[Section]
    frame: pd.DataFrame  # every task of every run once


def report(folders: Sequence[Path]) -> Report:
    """Everything the folders ask for; runs without a recipe get the layouts that their settings suggest."""
    sources = [source for folder in folders for source in read(folder)]
    rows = pd.concat([source.frame for source in sources], ignore_index=True)
    if not rows["n"].notna().any():
        raise DataError(f"{', '.join(map(str, folders))}: no finished run yet; finish one, then report.")
    sections = [_section(source) for source in sources if source.title]
    if loose := [source.frame for source in sources if not source.title]:
        # Loose runs are one set, so that they are compared with each other.
        sections.append(_section(_with_layouts(pd.concat(loose, ignore_index=True))))
    title = sections[0].title if len(sections) == 1 else f"{len(sections)} sweeps"
    rows = rows.drop_duplicates(["path", "task"], ignore_index=True)
    every = build(DETAILS, rows[rows["n"].notna()])
    return Report(title, [*sections, Section("All runs", [every])], rows)


def _with_layouts(rows: pd.DataFrame) -> Source:
    """Runs without a recipe, and what their settings suggest to show of them."""
    tables = [TableLayout(title="Score and NFE", values=("score", "nfe"))]
    if "plan.block" in rows and rows["plan.block"].nunique() > 1:
        by_block: dict[str, Any] = {"index": ("model", "task", "method"), "columns": "block"}
        score = TableLayout(title="Score by block size", **by_block)
        tables = [score, TableLayout(title="NFE by block size", values=("nfe",), **by_block)]
    return Source("runs", rows, "Evaluation", tables, [FigureLayout(kind="bars", title="Score by task")])


def _section(source: Source) -> Section:
    """The layouts of a source over its rows, as far as they have finished."""
    rows, name = source.frame, source.name

    def finished(layout: Layout) -> bool:
        return bool(select(rows, layout.where)["n"].notna().any())

    left = int(rows["n"].isna().sum())
    return Section(
        source.title,
        [build(layout, rows) for layout in source.tables if finished(layout)],
        [plot for layout in source.figures if finished(layout) for plot in plots(layout, rows, name)],
        [f"{name}: {left} cells have not finished."] if left else [],
    )


# --------------------------------------------------------------------------------------------------- files of a report
def as_csv(page: Report) -> str:
    """A line for each task of each run: names, settings and metrics."""
    objects = ["provenance", "scores", "config.fields", "config.own_tasks"]
    text: str = page.frame.drop(columns=objects).to_csv(index=False)
    return text


def as_verdicts(page: Report) -> bytes:
    """The score of every problem, compressed: from these, each interval and paired difference can be computed again.

    A line for each task of each finished run: its names, its plan, its indices and the score of each by the grader that
    the report shows.
    """
    lines = []
    for row in page.frame[page.frame["n"].notna()].to_dict("records"):
        scored = verdicts(row)
        line = {name: row[name] for name in ("model", "method", "task", "filter")}
        line |= {"plan": plan_label(row["config.plan"]), "fields": row["config.fields"]}
        line |= {"cell": Path(row["path"]).name, "index": list(scored), "score": list(scored.values())}
        lines.append(json.dumps(line) + "\n")
    return gzip.compress("".join(lines).encode(), mtime=0)


def as_markdown(page: Report, *, intervals: bool = True, figures: bool = True) -> str:
    """The page, with its pictures by the names of their files, or without pictures."""
    parts = [f"# {md(page.title)}\n"]
    for part in page.sections:
        parts += [f"## {md(part.title)}\n"] if part.title != page.title else []
        parts += [f"{md(note)}\n" for note in part.notes]
        parts += [_markdown(table, intervals) for table in part.tables]
        for plot in part.plots if figures else ():
            parts.append(f"### {md(plot.title)}\n\n![{md(plot.title)}]({plot.file})\n")
    return "\n".join(parts)


def as_html(page: Report, *, intervals: bool = True) -> str:
    pictures = {plot.file: plot.svg for part in page.sections for plot in part.plots}
    return html_page(page.title, as_markdown(page, intervals=intervals), pictures)


def _markdown(table: Table, intervals: bool) -> str:
    caption = f"{table.title} ({table.reference})" if table.reference else table.title
    marks = ("{}", "**{}**", "<u>{}</u>")
    rows, above = [], ("",) * len(table.heads)
    for names, values in table.rows.items():
        shown = list(names)
        for at, name in enumerate(names[:-1]):  # leading names that the row above has too are left out
            if above[at] != name:
                break
            shown[at] = ""
        above = names
        cells = []
        for value in values.values():
            low, high = value.interval or (0.0, 0.0)
            beside = f" [{low:.1f}, {high:.1f}]" if value.interval and intervals else ""
            cells.append(marks[value.place].format(value.text) + beside)
        rows.append([*map(md, shown), *cells])
    lines = [f"### {md(caption)}", ""]
    lines += markdown_table([*map(md, table.heads), *map(md, table.columns)], rows, len(table.heads))
    lines += ["", *map(md, table.notes), *([""] if table.notes else [])]
    lines += [f"- {name}: {md(text)}" for name, text in origins(table.runs)]
    return "\n".join(lines) + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table; all columns after the first `left` are aligned to the right."""
    marks = ["---"] * left + ["---:"] * (len(heads) - left)
    return [f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows)]


def md(text: str) -> str:
    """One line of text for Markdown, where an underscore inside a word and brackets that are no link mean nothing."""
    return re.sub(
        r"[\\`*|<]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])", lambda mark: "\\" + mark[0], printable(text)
    )


def indented(text: str) -> str:
    """A text as a block of code in Markdown."""
    lines = [printable(line) for line in text.expandtabs().splitlines()] or ["(nothing)"]
    return "\n".join(f"    {line}" for line in lines)


CSS = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h2 { margin-top: 3rem; } h3 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: left; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); }
ul { font-size: .8rem; opacity: .85; }
pre { white-space: pre-wrap; }
img { max-width: 100%; background: white; }
@media (prefers-color-scheme: dark) { img { filter: invert(.93) hue-rotate(180deg); } }
"""


def html_page(title: str, markdown: str, pictures: Mapping[str, bytes] | None = None) -> str:
    """Markdown as one HTML file that needs nothing else: SVG pictures are put where it names their files.

    The Markdown may hold HTML of ours; names and texts from elsewhere must have gone through `md`.
    """
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    for file, svg in (pictures or {}).items():
        data = f"data:image/svg+xml;base64,{b64encode(svg).decode()}"
        body = body.replace(f'src="{file}"', f'src="{data}"')
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width"><title>{escape(printable(title))}</title>\n'
        f"<style>{CSS}</style></head><body>\n{body}</body></html>\n"
    )


# ------------------------------------------------------------------------------------------------------- two runs
def compare_runs(first: Path, second: Path) -> tuple[str, str]:
    """A title, and as Markdown: the settings that differ, a row for each task, and every item that changed sides."""
    runs = [read_run(path) for path in (first, second)]
    for run in runs:
        if not run.complete:
            raise DataError(f"{run.path}: not judged yet; finish the run, then compare.")
    examples = [pd.DataFrame(run.examples) for run in runs]
    both = examples[0].merge(examples[1], on=["task", "index"], suffixes=("", " after"))
    both["change"] = 100 * (both["score after"] - both["score"])
    if both.empty:
        raise ConfigError(f"compare {first} {second}: no item was answered by both; choose runs of one task.")
    for row in both[both["prompt_sha256"] != both["prompt_sha256 after"]].to_dict("records"):
        raise ConfigError(
            f"compare {first} {second}: item {row['index']} of {row['task']} has two prompts; "
            "use runs with equal shots and templates."
        )
    above = os.path.commonpath([path.resolve().parent for path in (first, second)])
    names = [os.path.relpath(path.resolve(), above) for path in (first, second)]
    before, after = map(md, names)
    mine, theirs = (run.config.plain() for run in runs)
    text = [f"# {after} against {before}", ""]
    text += [md(f"- {key}: {theirs[key]} against {mine[key]}") for key in mine if mine[key] != theirs[key]]
    heads = ["task", "items", before, after, "difference", "paired 95 %", "lost", "gained", "McNemar p"]
    rows = []
    for task, same in both.groupby("task", sort=False):
        change, scores = same["change"], 100 * same[["score", "score after"]].mean()
        low, high = paired_bootstrap(change)
        lost, gained = int((change < 0).sum()), int((change > 0).sum())
        row = [md(str(task)), str(len(same)), *(f"{score:.2f}" for score in scores), f"{change.mean():+.2f}"]
        row += [f"[{low:+.2f}, {high:+.2f}]", str(lost), str(gained), f"{mcnemar(lost, gained):.3g}"]
        rows.append(row)
    text += ["", *markdown_table(heads, rows)]
    for row in both[both["change"] != 0].to_dict("records"):
        text += ["", f"## {md(row['task'])} {row['index']}: {row['score']:g} to {row['score after']:g}"]
        titles = {"prompt": "prompt", "gold": "gold", "output": before, "output after": after}
        for name, title in titles.items():
            text += ["", f"{title}:", "", indented(str(row[name]))]
    return " against ".join(reversed(names)), "\n".join(text) + "\n"


# ------------------------------------------------------------------------------------ where a table's numbers come from
ELSEWHERE = ("model", "adapter", "tasks", "plan", "fields", "weights", "own_tasks")  # not among the settings
MADE_WITH = ("voidpad", "commit", "dirty", "python", "torch", "transformers", "lm_eval", "math_verify", "device",
             "device_count", "tf32", "rows", "tokens", "data")  # fmt: skip


def origins(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Facts under a table, by name. A fact that differs between the runs lists every value."""
    done = runs[runs["n"].notna()].to_dict("records")
    facts = [row["provenance"] for row in done]
    plans: dict[str, dict[str, list[str]]] = {}  # preset -> field that was given -> its values
    for row in done:
        given = plans.setdefault(plan_label(row["config.plan"]), {})
        for name, value in row["config.fields"].items():
            given.setdefault(name, []).append(str(value))
    named = [filter(None, (row["config.model"], row["config.adapter"])) for row in done]
    made = {name: [fact.get(name) for fact in facts] for name in MADE_WITH}
    made["sandbox"] = [
        ("weak" if box["weak"] else "full") if box["allowed"] else "off"
        for box in (fact["sandbox"] for fact in facts)
    ]
    changed = {
        name: [json.dumps(row[f"config.{name}"]) for row in done]
        for name, field in EvalConfig.model_fields.items()
        if name not in ELSEWHERE and any(row[f"config.{name}"] != field.default for row in done)
    }
    settings = [f"{name}={_distinct(values, ' / ')}" for name, values in changed.items()]
    with_what = [
        f"{name} {_distinct(map(str, values), ' / ')}" for name, values in made.items() if any(values)
    ]
    return [
        ("Runs", f"{len({row['path'] for row in done})} finished of {runs['path'].nunique()}"),
        ("Models", _distinct(map(" with adapter ".join, named))),
        ("Plans", "; ".join(_plan(name, plans[name]) for name in sorted(plans))),
        ("Settings other than the defaults", ", ".join(settings) or "none"),
        (
            "Test sets",
            _distinct((f"{row['task']} {row['n']:.0f} of {row['test_size']:.0f}" for row in done), ", "),
        ),
        ("Graders", _distinct((f"{row['task']} {row['filter']}" for row in done), ", ")),
        ("Passes", "NFE counts decoding passes; probe passes are not in it and are listed in the details"),
        ("Made with", ", ".join(with_what)),
        (
            "Intervals",
            "95 %: Wilson's for a task, combined over tasks for a mean, paired bootstrap for a difference",
        ),
    ]


def _distinct(values: Iterable[str], between: str = "; ") -> str:
    return between.join(dict.fromkeys(values))


def _plan(name: str, given: Mapping[str, Iterable[str]]) -> str:
    fields = ", ".join(f"{field} {_distinct(values, '/')}" for field, values in given.items())
    return f"{name} ({fields})" if fields else name
