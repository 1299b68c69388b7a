"""Tables -> Markdown, LaTeX and HTML."""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape as _escape

from voidpad.errors import printable
from voidpad.experiments.report.origins import provenance
from voidpad.experiments.report.report_metrics import Value
from voidpad.experiments.report.tables import Table, TableRow


@dataclass(frozen=True)
class _Style:
    """How a format writes a cell."""

    plain: Callable[[str], str]
    best: Callable[[str], str]
    second: Callable[[str], str]
    interval: Callable[[str], str]

    def cell(self, value: Value, intervals: bool) -> str:
        marks = (self.plain, self.best, self.second)
        shown = marks[value.place](value.text)
        if value.interval is None or not intervals:
            return shown
        low, high = value.interval
        return shown + self.interval(f"[{low:.1f}, {high:.1f}]")


def tex(text: str) -> str:
    """One line of text with LaTeX's special characters escaped and control characters spelled out."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    special |= {mark: "\\" + mark for mark in "&%$#_{}"}
    return "".join(special.get(mark, mark) for mark in printable(text))


def md(text: str) -> str:
    """The same for Markdown, where an underscore inside a word and brackets that are no link mean nothing."""
    return re.sub(
        r"[\\`*|<]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])", lambda mark: "\\" + mark[0], printable(text)
    )


def escape(text: str) -> str:
    """The same for HTML."""
    return _escape(printable(text))


MARKDOWN = _Style(str, lambda t: f"**{t}**", lambda t: f"<u>{t}</u>", lambda t: f" {t}")
LATEX = _Style(
    tex,
    lambda t: rf"\textbf{{{tex(t)}}}",
    lambda t: rf"\underline{{{tex(t)}}}",
    lambda t: rf" {{\scriptsize {t}}}",
)
HTML = _Style(
    escape,
    lambda t: f"<strong>{escape(t)}</strong>",
    lambda t: f"<u>{escape(t)}</u>",
    lambda t: f' <span class="interval">{t}</span>',
)


def _caption(table: Table) -> str:
    return f"{table.title} ({table.reference})" if table.reference else table.title


def _with_heads(rows: Sequence[TableRow]) -> Iterator[tuple[TableRow, list[str]]]:
    """Each row with its names; the leading ones it shares with the row above are left out."""
    above: TableRow | None = None
    for row in rows:
        shown = list(row.head)
        for at, name in enumerate(row.head[:-1]):
            if above is None or above.head[at] != name:
                break
            shown[at] = ""
        yield row, shown
        above = row


def markdown(table: Table, *, intervals: bool = True) -> str:
    top = [*table.heads, *table.columns]
    lines = [f"### {md(_caption(table))}", "", _line([md(name) for name in top])]
    lines.append(_line(["---"] * len(table.heads) + ["---:"] * len(table.columns)))
    for row, heads in _with_heads(table.rows):
        cells = [MARKDOWN.cell(value, intervals) for value in row.values]
        lines.append(_line([*map(md, heads), *cells]))
    lines += ["", *map(md, table.notes), *([""] if table.notes else [])]
    lines += [f"- {name}: {md(text)}" for name, text in provenance(table.records)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def latex(table: Table, *, intervals: bool = True) -> str:
    """A booktabs table: needs \\usepackage{booktabs} and, for wide ones, graphicx."""
    shape = "l" * len(table.heads) + "r" * len(table.columns)
    body = [r"\toprule", " & ".join(map(tex, [*table.heads, *table.columns])) + r" \\"]
    for group in table.groups:
        body.append(r"\midrule")
        for row, heads in _with_heads(group):
            cells = [*map(tex, heads), *(LATEX.cell(value, intervals) for value in row.values)]
            body.append(" & ".join(cells) + r" \\")
    inner = "\n".join([rf"\begin{{tabular}}{{{shape}}}", *body, r"\bottomrule", r"\end{tabular}"])
    facts = [*table.notes, *(f"{name}: {text}." for name, text in provenance(table.records))]
    return "\n".join(
        [
            r"\begin{table}[p]",
            r"\centering",
            rf"\caption{{{tex(_caption(table))}}}",
            rf"\resizebox{{\ifdim\width>\linewidth\linewidth\else\width\fi}}{{!}}{{{inner}}}",
            r"\par\smallskip{\footnotesize\raggedright " + tex(" ".join(facts)) + r"\par}",
            r"\end{table}",
            "",
        ]
    )


def html(table: Table, *, intervals: bool = True) -> str:
    top = [f"<th>{escape(name)}</th>" for name in table.heads]
    top += [f'<th class="number">{escape(name)}</th>' for name in table.columns]
    body = [f"<tbody>{_html_rows(group, intervals)}</tbody>" for group in table.groups]
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    facts = "".join(f"<dt>{escape(n)}</dt><dd>{escape(text)}</dd>" for n, text in provenance(table.records))
    return (
        f'<section><h3>{escape(_caption(table))}</h3>\n<div class="wide"><table>'
        + f"<thead><tr>{''.join(top)}</tr></thead>\n"
        + "\n".join(body)
        + f"</table></div>\n{notes}<dl>{facts}</dl></section>\n"
    )


def _html_rows(group: Sequence[TableRow], intervals: bool) -> str:
    rows = []
    for row, heads in _with_heads(group):
        names = "".join(f"<th>{escape(name)}</th>" for name in heads)
        cells = "".join(f'<td class="number">{HTML.cell(value, intervals)}</td>' for value in row.values)
        rows.append(f"<tr>{names}{cells}</tr>")
    return "\n".join(rows)


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


def html_page(title: str, body: str, style: str = "") -> str:
    """A whole page: one file that needs nothing else. `style` is added to the styles of every report."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{CSS}{style}</style></head><body>\n<h1>{escape(title)}</h1>\n{body}</body></html>\n"
    )


def html_figure(title: str, svg: bytes, caption: str) -> str:
    """A picture inside a page, with its title above it and its caption below."""
    image = b64encode(svg).decode()
    return (
        f'<section><h3>{escape(title)}</h3><figure><img alt="{escape(title)}" src="data:image/svg+xml;base64,{image}">'
        f"<figcaption>{escape(caption)}</figcaption></figure></section>"
    )
