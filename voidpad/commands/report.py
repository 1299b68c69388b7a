"""`voidpad report`: run folders to tables and figures; `--paper`: the paper's own numbers, checked."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from voidpad.commands.outputs import folder_to_write
from voidpad.errors import ConfigError
from voidpad.files import beside


class Format(StrEnum):
    md = "md"
    tex = "tex"
    html = "html"


Folders = Annotated[
    list[Path] | None, typer.Argument(help="Run folders, sweep folders, or NAME.sweep.json files.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the report and its figures; prints Markdown without it.", callback=folder_to_write
    ),
]
Formats = Annotated[
    list[Format] | None, typer.Option("--format", help="Only these formats; may be repeated.")
]
Paper = Annotated[
    bool, typer.Option("--paper", help="Recompute the paper's numbers and list what disagrees.")
]
Intervals = Annotated[bool, typer.Option(help="Show 95 % intervals beside the scores.")]


def report(
    folders: Folders = None,
    out: Out = None,
    formats: Formats = None,
    paper: Paper = False,
    intervals: Intervals = True,
) -> None:
    """Tables in the paper's layout from finished runs, with where every number comes from."""
    if not folders and not paper:
        raise ConfigError("folders: none given; name a run or sweep folder, or ask for --paper.")
    texts: dict[str, str | bytes] = {}
    if paper:
        texts["paper.md"] = "\n".join(paper_lines()) + "\n"
    if out is None:
        printed = [str(texts["paper.md"])] if paper else []
        typer.echo("\n".join([*printed, *([tables(folders, intervals)] if folders else [])]), nl=False)
        return
    if folders:
        texts |= pages(folders, [str(one) for one in formats or Format], intervals)
    for name, text in texts.items():
        write(out / name, text)
    typer.echo(f"{out}: {', '.join(name for name in texts if '/' not in name)}")


def tables(folders: list[Path], intervals: bool) -> str:
    """For the screen: without pictures, which are files."""
    from voidpad.experiments.report.pages import as_markdown
    from voidpad.experiments.report.pages import report as collected

    return as_markdown(collected(folders), intervals=intervals, figures=None)


def pages(folders: list[Path], formats: list[str], intervals: bool) -> dict[str, str | bytes]:
    """File name -> content."""
    from voidpad.experiments.report.pages import as_html, as_latex, as_markdown
    from voidpad.experiments.report.pages import report as collected

    page = collected(folders)
    draw = {"md": as_markdown, "tex": as_latex, "html": as_html}
    texts: dict[str, str | bytes] = {f"report.{one}": draw[one](page, intervals=intervals) for one in formats}
    for plot in (plot for section in page.sections for plot in section.plots):
        texts |= {f"figures/{plot.name}.svg": plot.svg, f"figures/{plot.name}.pdf": plot.pdf}
    return texts


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with beside(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def paper_lines() -> Iterator[str]:
    """The paper's derived numbers that follow from its measured ones, and everything that does not fit."""
    from voidpad.paper import findings, published, recomputed

    checks = recomputed(published())
    found = findings(published())
    yield "# The paper's own numbers"
    yield ""
    agreeing = sum(check.agrees for check in checks)
    yield f"{agreeing} of {len(checks)} derived numbers (means, extremes, reductions, speed-ups) recompute."
    yield f"{len(found)} disagreements:"
    for rule, group in groupby(found, key=lambda finding: finding.rule):
        yield from ["", f"## {rule}", ""]
        for finding in group:
            values = ", ".join(f"{name} {value}" for name, value in finding.values.items())
            yield f"- {finding.what}: {values}. {finding.meaning[0].upper()}{finding.meaning[1:]}."
