"""`voidpad report`: run folders to tables and figures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer
from typer import Argument, Option

from voidpad.commands.ui import output_folder
from voidpad.errors import ConfigError
from voidpad.files import atomic_file


class Format(StrEnum):
    md = "md"
    html = "html"
    csv = "csv"


def report(
    folders: list[Path] = Argument(..., help="Run folders, sweep folders, or NAME.sweep.json files."),
    out: Path | None = output_folder(
        None, "Folder for the report and its figures; prints Markdown without it."
    ),
    formats: list[Format] | None = Option(None, "--format", help="Only these formats; may be repeated."),
    compare: bool = Option(
        False, "--compare", help="Two run folders: paired difference, items that changed."
    ),
    intervals: bool = Option(True, help="Show 95 % intervals beside the scores."),
) -> None:
    """Tables and figures from finished runs, with where every number comes from, and the verdict of every problem."""
    from voidpad.experiments.report import pages
    from voidpad.experiments.report.compare import compare_runs

    files: dict[str, str | bytes]
    if compare:
        if len(folders) != 2:
            raise ConfigError(
                f"compare: takes two run folders, got {len(folders)}; name the first and the second."
            )
        title, text = compare_runs(*folders)
        files = {"compare.md": text, "compare.html": pages.html_page(title, text)}
    else:
        page, wanted = pages.report(folders), formats or list(Format)
        text = pages.as_markdown(page, intervals=intervals, figures=out is not None)
        files = {"report.md": text} if Format.md in wanted else {}
        if Format.html in wanted:
            files["report.html"] = pages.as_html(page, intervals=intervals)
        if Format.csv in wanted:
            files["report.csv"] = pages.as_csv(page)
        files["verdicts.jsonl.gz"] = pages.as_verdicts(page)
        files |= {plot.file: plot.svg for section in page.sections for plot in section.plots}
    if out is None:
        typer.echo(text, nl=False)
        return
    for name, content in files.items():
        with atomic_file(out / name) as draft:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
    typer.echo(f"{out}: {', '.join(name for name in files if '/' not in name)}")
