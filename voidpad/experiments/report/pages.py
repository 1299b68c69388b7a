"""A whole report: the tables and figures of some folders, as Markdown, LaTeX and one HTML file."""

from base64 import b64encode
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
from voidpad.experiments.report.render import escape, html, latex, markdown, md, tex
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
        sweep.title if sweep else "Evaluation",
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
            return TABLES.validate_python(list(sweep.tables)), FIGURES.validate_python(list(sweep.figures))
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


CSS = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h2 { margin-top: 3rem; } h3 { font-size: 1.05rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
figcaption { font-size: .8rem; opacity: .85; }
th, td { padding: .15rem .6rem; text-align: left; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); }
tbody { border-bottom: 1px solid var(--line); }
tbody th { font-weight: normal; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.interval { font-size: .75em; opacity: .7; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: .8rem; opacity: .85; }
dt, dd { margin: 0; }
figure { margin: 1rem 0; } img { max-width: 100%; background: white; }
"""


def as_html(page: Report, *, intervals: bool = True) -> str:
    """One file that needs nothing else: styles and figures are inside."""
    body = "".join(_html_section(part, intervals) for part in page.sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(page.title)}</title>\n'
        f"<style>{CSS}</style></head><body>\n<h1>{escape(page.title)}</h1>\n{body}</body></html>\n"
    )


def _html_section(part: Section, intervals: bool) -> str:
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in part.notes)
    tables = "".join(html(table, intervals=intervals) for table in part.tables)
    return f"<h2>{escape(part.title)}</h2>\n{notes}{tables}{''.join(map(_html_plot, part.plots))}"


def _html_plot(plot: Plot) -> str:
    image = b64encode(plot.svg).decode()
    facts = "; ".join(f"{name}: {text}" for name, text in provenance(plot.records))
    return (
        f'<section><h3>{escape(plot.title)}</h3><figure><img alt="{escape(plot.title)}" '
        f'src="data:image/svg+xml;base64,{image}"><figcaption>{escape(facts)}</figcaption></figure></section>\n'
    )
