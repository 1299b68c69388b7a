"""A whole report: the tables and figures of some folders, as Markdown, LaTeX and one HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from voidpad.errors import DataError, fault
from voidpad.experiments.report.figures import Plot, plots
from voidpad.experiments.report.layout import Bars, Blocks, Details, FigureLayout, Item, TableLayout, Tasks
from voidpad.experiments.report.origins import provenance
from voidpad.experiments.report.published import PublishedNumbers
from voidpad.experiments.report.records import CellRecord, Source, read
from voidpad.experiments.report.render import escape, html, html_figure, html_page, latex, markdown, md, tex
from voidpad.experiments.report.report_metrics import ordered
from voidpad.experiments.report.tables import Table, build, comparison

TABLES: TypeAdapter[list[TableLayout]] = TypeAdapter(list[TableLayout])
FIGURES: TypeAdapter[list[FigureLayout]] = TypeAdapter(list[FigureLayout])


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


def report(folders: Sequence[Path], published: PublishedNumbers | None = None) -> Report:
    """Everything the folders ask for; runs without a recipe get the layouts their settings suggest."""
    sources = [source for folder in folders for source in read(folder, published)]
    records = list({(r.folder, r.task): r for source in sources for r in source.records}.values())
    if not any(record.done for record in records):
        raise DataError(f"{', '.join(map(str, folders))}: no finished run yet; finish one, then report.")
    sections = [_section(group) for group in _together(sources)]
    against = comparison(records)
    every = (build(Details(title="Everything that was measured"), records), *([against] if against else []))
    title = sections[0].title if len(sections) == 1 else f"{len(sections)} sweeps"
    return Report(title, (*sections, Section("All runs", every)))


def _section(group: Sequence[Source]) -> Section:
    """The layouts of a group of sources over its finished records; a sweep may be reported half done."""
    records = [record for source in group for record in source.records]
    tables, figures = _layouts(group, records)
    sweep, name = group[0].sweep, group[0].name
    drawn = [plot for layout in figures if _shown(layout, records) for plot in plots(layout, records)]
    return Section(
        sweep["title"] if sweep else "Evaluation",
        tuple(build(layout, records) for layout in tables if _shown(layout, records)),
        tuple(replace(plot, name=f"{name}-{plot.name}") for plot in drawn),
        tuple(note for source in group for note in _missing(source)),
    )


def _shown(layout: Item, records: Sequence[CellRecord]) -> bool:
    return any(record.done and record.matches(layout.where) for record in records)


def _together(sources: Sequence[Source]) -> list[list[Source]]:
    """Each sweep by itself; loose runs as one set, so that they are compared with each other."""
    loose = [source for source in sources if source.sweep is None]
    return [[source] for source in sources if source.sweep] + ([loose] if loose else [])


def _layouts(
    group: Sequence[Source], records: Sequence[CellRecord]
) -> tuple[list[TableLayout], list[FigureLayout]]:
    sweep = group[0].sweep
    if sweep:
        try:
            return TABLES.validate_python(sweep["tables"]), FIGURES.validate_python(sweep["figures"])
        except ValidationError as error:
            raise DataError(
                f"{group[0].name}.sweep.json: {fault(error.errors()[0])[:300]}; run the sweep again."
            ) from None
    return _suggested(records) if records else ([], [])


def _suggested(records: Sequence[CellRecord]) -> tuple[list[TableLayout], list[FigureLayout]]:
    """Tables for runs that no recipe describes: by task, and by block where the block was varied."""
    tables: list[TableLayout] = []
    if len(ordered(record.get("block") for record in records)) > 1:
        tables += [Blocks(title="Score by block size"), Blocks(title="NFE by block size", metric="nfe")]
    else:
        tables += [Tasks(title="Score and NFE", metrics=("score", "nfe"))]
    return tables, [Bars(title="Score by task")]


def _missing(source: Source) -> list[str]:
    left = sum(not record.done for record in source.records)
    return [f"{source.name}: {left} cells have not finished."] if left else []


def as_markdown(page: Report, *, intervals: bool = True, figures: str | None = "figures") -> str:
    """`figures` is where the pictures are; None leaves them out."""
    parts = [f"# {md(page.title)}\n"]
    for part in page.sections:
        parts += [f"## {md(part.title)}\n", *(f"{md(note)}\n" for note in part.notes)]
        parts += [markdown(table, intervals=intervals) for table in part.tables]
        drawn = part.plots if figures else ()
        parts += [
            f"### {md(plot.title)}\n\n![{md(plot.title)}]({figures}/{plot.name}.svg)\n" for plot in drawn
        ]
    return "\n".join(parts)


def as_latex(page: Report, *, intervals: bool = True) -> str:
    """A document that compiles by itself; its tables can be copied out."""
    parts = [r"\documentclass{article}", r"\usepackage{booktabs,graphicx}", r"\begin{document}"]
    for part in page.sections:
        parts += [rf"\section*{{{tex(part.title)}}}", *map(tex, part.notes)]
        parts += [latex(table, intervals=intervals) for table in part.tables]
        parts += [_latex_plot(plot) for plot in part.plots] + [r"\clearpage"]
    return "\n".join([*parts, r"\end{document}", ""])


def _latex_plot(plot: Plot) -> str:
    image = rf"\includegraphics[width=\linewidth]{{figures/{plot.name}.pdf}}"
    caption = rf"\caption{{{tex(plot.title)}}}"
    return "\n".join([r"\begin{figure}[p]\centering", image, caption, r"\end{figure}"])


def as_html(page: Report, *, intervals: bool = True) -> str:
    """One file that needs nothing else: styles and figures are inside."""
    return html_page(page.title, "".join(_html_section(part, intervals) for part in page.sections))


def _html_section(part: Section, intervals: bool) -> str:
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in part.notes)
    tables = "".join(html(table, intervals=intervals) for table in part.tables)
    return f"<h2>{escape(part.title)}</h2>\n{notes}{tables}{''.join(map(_html_plot, part.plots))}"


def _html_plot(plot: Plot) -> str:
    facts = "; ".join(f"{name}: {text}" for name, text in provenance(plot.records))
    return html_figure(plot.title, plot.svg, facts) + "\n"
