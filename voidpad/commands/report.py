"""`voidpad report`: run folders to tables and figures."""

from __future__ import annotations

from enum import StrEnum
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
Published = Annotated[
    Path | None,
    typer.Option(help="TOML file of published numbers to set beside ours (studies/paper/published.toml)."),
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
    published: Published = None,
    compare: Compare = False,
    intervals: Intervals = True,
) -> None:
    """Tables in the paper's layout from finished runs, with where every number comes from."""
    from voidpad.experiments.report.pages import as_html, as_latex, as_markdown
    from voidpad.experiments.report.pages import report as collected
    from voidpad.experiments.report.published import read_published

    if compare:
        _compare_two(folders, out)
        return
    page = collected(folders, read_published(published) if published else None)
    if out is None:  # for the screen: without pictures, which are files
        typer.echo(as_markdown(page, intervals=intervals, figures=None), nl=False)
        return
    draw = {"md": as_markdown, "tex": as_latex, "html": as_html}
    texts: dict[str, str | bytes] = {
        f"report.{one}": draw[one](page, intervals=intervals) for one in formats or Format
    }
    for plot in (plot for section in page.sections for plot in section.plots):
        texts |= {f"figures/{plot.name}.svg": plot.svg, f"figures/{plot.name}.pdf": plot.pdf}
    for name, text in texts.items():
        _write(out / name, text)
    typer.echo(f"{out}: {', '.join(name for name in texts if '/' not in name)}")


def _compare_two(folders: list[Path], out: Path | None) -> None:
    from voidpad.experiments.report.compare import compare_runs, compared_html, compared_markdown

    if len(folders) != 2:
        raise ConfigError(
            f"compare: takes two run folders, got {len(folders)}; name the first and the second."
        )
    comparison = compare_runs(*folders)
    if out is None:
        typer.echo(compared_markdown(comparison), nl=False)
        return
    _write(out / "compare.md", compared_markdown(comparison))
    _write(out / "compare.html", compared_html(comparison))
    typer.echo(f"{out}: compare.md, compare.html")


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with beside(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
