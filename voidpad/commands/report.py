"""`voidpad report`: run folders to tables and figures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from voidpad.commands.ui import folder_to_write
from voidpad.errors import ConfigError
from voidpad.files import atomic_file


class Format(StrEnum):
    md = "md"
    html = "html"
    csv = "csv"


Folders = Annotated[list[Path], typer.Argument(help="Run folders, sweep folders, or NAME.sweep.json files.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the report and its figures; prints Markdown without it.", callback=folder_to_write
    ),
]
Formats = Annotated[
    list[Format] | None, typer.Option("--format", help="Only these formats; may be repeated.")
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare", help="Two run folders: paired difference, and the items that changed, with texts."
    ),
]
Intervals = Annotated[bool, typer.Option(help="Show 95 % intervals beside the scores.")]


def report(
    folders: Folders,
    out: Out = None,
    formats: Formats = None,
    compare: Compare = False,
    intervals: Intervals = True,
) -> None:
    """Tables and figures from finished runs, with where every number comes from, and the verdict of every problem."""
    from voidpad.experiments.report.pages import as_csv, as_html, as_markdown, as_verdicts
    from voidpad.experiments.report.pages import report as collected

    if compare:
        _compare_two(folders, out)
        return
    page = collected(folders)
    if out is None:  # for the screen: without pictures, which are files
        typer.echo(as_markdown(page, intervals=intervals, figures=False), nl=False)
        return
    wanted = formats or list(Format)
    files: dict[str, str | bytes] = {}
    if Format.md in wanted:
        files["report.md"] = as_markdown(page, intervals=intervals)
    if Format.html in wanted:
        files["report.html"] = as_html(page, intervals=intervals)
    if Format.csv in wanted:
        files["report.csv"] = as_csv(page)
    files["verdicts.jsonl.gz"] = as_verdicts(page)
    for plot in (plot for section in page.sections for plot in section.plots):
        files[plot.file] = plot.svg
    for name, content in files.items():
        _write(out / name, content)
    typer.echo(f"{out}: {', '.join(name for name in files if '/' not in name)}")


def _compare_two(folders: list[Path], out: Path | None) -> None:
    from voidpad.experiments.report.compare import compare_runs
    from voidpad.experiments.report.pages import html_page

    if len(folders) != 2:
        raise ConfigError(
            f"compare: takes two run folders, got {len(folders)}; name the first and the second."
        )
    title, text = compare_runs(*folders)
    if out is None:
        typer.echo(text, nl=False)
        return
    _write(out / "compare.md", text)
    _write(out / "compare.html", html_page(title, text))
    typer.echo(f"{out}: compare.md, compare.html")


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
