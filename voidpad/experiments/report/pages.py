"""A whole report: the tables and figures of some folders, as Markdown, one HTML file, CSV and verdicts."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt

from voidpad.errors import DataError, printable
from voidpad.evaluate.folder import damaged
from voidpad.experiments.report.figures import Plot, plots
from voidpad.experiments.report.frame import Source, plan_label, read, select, verdicts
from voidpad.experiments.report.layout import DETAILS, FigureLayout, Layout, TableLayout
from voidpad.experiments.report.tables import Table, build


@dataclass(frozen=True)
class Section:
    """The tables and figures of one sweep, or of the runs no sweep describes."""

    title: str
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    title: str
    sections: tuple[Section, ...]
    frame: pd.DataFrame  # every task of every run once


def report(folders: Sequence[Path]) -> Report:
    """Everything the folders ask for; runs without a recipe get the layouts that their settings suggest."""
    sources = [source for folder in folders for source in read(folder)]
    rows = pd.concat([source.frame for source in sources], ignore_index=True)
    if "n" not in rows or not rows["n"].notna().any():
        raise DataError(f"{', '.join(map(str, folders))}: no finished run yet; finish one, then report.")
    sections = [_section(source) for source in sources if source.sweep]
    if loose := [source.frame for source in sources if not source.sweep]:
        # Loose runs are one set, so that they are compared with each other.
        sections.append(_section(Source("runs", pd.concat(loose, ignore_index=True))))
    title = sections[0].title if len(sections) == 1 else f"{len(sections)} sweeps"
    rows = rows.drop_duplicates(["path", "task"], ignore_index=True)
    details = TableLayout(
        title="Everything that was measured",
        index=("model", "task", "method", "setting", "examples"),
        columns=None,
        values=DETAILS,
    )
    every = build(details, rows[rows["n"].notna()])
    return Report(title, (*sections, Section("All runs", (every,))), rows)


def _section(source: Source) -> Section:
    """The layouts of a source over its rows; a sweep may be reported half done."""
    rows, sweep = source.frame, source.sweep
    if "n" not in rows:
        rows = rows.assign(n=float("nan"))
    tables, figures = _suggested(rows)
    if sweep:
        with damaged(f"{source.name}.sweep.json", "run the sweep again"):
            tables = [TableLayout(**table) for table in sweep["tables"]]
            figures = [FigureLayout(**figure) for figure in sweep["figures"]]
    drawn = [plot for layout in figures if _shown(layout, rows) for plot in plots(layout, rows)]
    left = int(rows["n"].isna().sum())
    return Section(
        sweep["title"] if sweep else "Evaluation",
        tuple(build(layout, rows) for layout in tables if _shown(layout, rows)),
        tuple(replace(plot, name=f"{source.name}-{plot.name}") for plot in drawn),
        (f"{source.name}: {left} cells have not finished.",) if left else (),
    )


def _shown(layout: Layout, rows: pd.DataFrame) -> bool:
    return bool(select(rows, layout.where)["n"].notna().any())


def _suggested(rows: pd.DataFrame) -> tuple[list[TableLayout], list[FigureLayout]]:
    """Layouts for runs that no recipe describes: by task, and by block where the block was varied."""
    tables = [TableLayout(title="Score and NFE", values=("score", "nfe"))]
    if "plan.block" in rows and rows["plan.block"].nunique() > 1:
        by_block: dict[str, Any] = {"index": ("model", "task", "method"), "columns": "block"}
        tables = [
            TableLayout(title="Score by block size", **by_block),
            TableLayout(title="NFE by block size", values=("nfe",), **by_block),
        ]
    return tables, [FigureLayout(kind="bars", title="Score by task")]


# --------------------------------------------------------------------------------------------------- files of a report
def as_csv(page: Report) -> str:
    """A line for each task of each run: names, settings and metrics."""
    objects = ["provenance", "scores", "config.fields", "config.own_tasks"]
    text: str = page.frame.drop(columns=objects, errors="ignore").to_csv(index=False)
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
        parts += [f"## {md(part.title)}\n", *(f"{md(note)}\n" for note in part.notes)]
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
    for row in table.rows:
        shown = list(row.head)
        for at, name in enumerate(row.head[:-1]):  # leading names that the row above has too are left out
            if above[at] != name:
                break
            shown[at] = ""
        above = row.head
        cells = []
        for value in row.values:
            low, high = value.interval or (0.0, 0.0)
            beside = f" [{low:.1f}, {high:.1f}]" if value.interval and intervals else ""
            cells.append(marks[value.place].format(value.text) + beside)
        rows.append([*map(md, shown), *cells])
    lines = [f"### {md(caption)}", ""]
    lines += markdown_table([*map(md, table.heads), *map(md, table.columns)], rows, len(table.heads))
    lines += ["", *map(md, table.notes), *([""] if table.notes else [])]
    lines += [f"- {name}: {md(text)}" for name, text in provenance(table.runs)]
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


CSS = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h2 { margin-top: 3rem; } h3 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); }
ul { font-size: .8rem; opacity: .85; }
pre { white-space: pre-wrap; }
img { max-width: 100%; background: white; }
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
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(printable(title))}</title>\n'
        f"<style>{CSS}</style></head><body>\n{body}</body></html>\n"
    )


# ------------------------------------------------------------------------------------ where a table's numbers come from
VERSIONS = ("voidpad", "python", "torch", "transformers", "lm_eval", "math_verify")
COMMON = (
    "dtype",
    "quantize",
    "cache",
    "seed",
    "fewshot",
    "fewshot_seed",
    "parity",
    "system",
    "raw",
    "merge",
    "limit",
)


def provenance(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Facts under a table, by name. A fact that differs between the runs lists every value."""
    done = runs[runs["n"].notna()].to_dict("records")
    facts = [row["provenance"] for row in done]
    models = [
        " with adapter ".join(
            name for name in (row["config.model"], row["config.adapter"]) if isinstance(name, str)
        )
        for row in done
    ]
    finished = len({row["path"] for row in done})
    sizes: dict[str, dict[str, None]] = {}
    for row in done:
        sizes.setdefault(row["task"], {})[f"{row['n']:.0f} of {row['test_size']:.0f}"] = None
    common = ", ".join(
        f"{name}={_distinct((json.dumps(row[f'config.{name}']) for row in done), ' / ')}" for name in COMMON
    )
    plans = sorted({plan_label(row["config.plan"]) for row in done})
    return [
        ("Runs", f"{finished} finished of {runs['path'].nunique()}"),
        ("Models", _distinct(models)),
        (
            "Plans",
            _distinct(_plan([row for row in done if plan_label(row["config.plan"]) == p], p) for p in plans),
        ),
        ("Settings", common),
        ("Test sets", ", ".join(f"{task} {' / '.join(counts)}" for task, counts in sizes.items())),
        ("Graders", _distinct((f"{row['task']} {row['filter']}" for row in done), ", ")),
        ("Passes", "NFE counts decoding passes; probe passes are not in it and are listed in the details"),
        ("Versions", ", ".join(f"{name} {_one_of(facts, name)}" for name in VERSIONS)),
        ("Commit", _distinct(map(_commit, facts))),
        ("Device", _distinct(map(_device, facts))),
        ("Batching", f"at most {_one_of(facts, 'rows')} rows and {_one_of(facts, 'tokens')} tokens a pass"),
        ("Data", _one_of(facts, "data")),
        ("Code execution", _distinct(map(_sandbox, facts))),
        (
            "Intervals",
            "95 %: Wilson's for a task, combined over tasks for a mean, paired bootstrap for a difference",
        ),
    ]


def _distinct(values: Iterable[str], between: str = "; ") -> str:
    return between.join(dict.fromkeys(values))


def _one_of(facts: Sequence[Mapping[str, Any]], name: str) -> str:
    return _distinct((str(one.get(name) or "none") for one in facts), " / ")


def _plan(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """A preset with the fields its runs gave, each with all its values."""
    given: dict[str, dict[str, None]] = {}
    for row in rows:
        for field, value in row["config.fields"].items():
            given.setdefault(field, {})[str(value)] = None
    shown = ", ".join(f"{field} {'/'.join(values)}" for field, values in given.items())
    return f"{name} ({shown})" if shown else name


def _commit(facts: Mapping[str, Any]) -> str:
    commit = facts.get("commit")
    return f"{commit[:12]}{' with local changes' if facts.get('dirty') else ''}" if commit else "unknown"


def _device(facts: Mapping[str, Any]) -> str:
    count = facts.get("device_count") or 1
    times = f" x {count}" if count > 1 else ""
    rounded = ", float32 products in TF32" if facts.get("tf32") else ""
    return f"{facts.get('device') or 'unknown'}{times}{rounded}"


def _sandbox(facts: Mapping[str, Any]) -> str:
    sandbox = facts.get("sandbox")
    if sandbox is None:
        return "unknown"
    if not sandbox["allowed"]:
        return "off"
    return "sandboxed, weak layers allowed" if sandbox["weak"] else "sandboxed"
