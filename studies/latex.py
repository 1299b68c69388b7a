"""The tables of a report as LaTeX.

python -m studies.latex runs/paper > tables.tex
"""

import argparse
from pathlib import Path

from voidpad.errors import printable
from voidpad.experiments.report.frame import Value
from voidpad.experiments.report.pages import origins, report
from voidpad.experiments.report.tables import Table

SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
SPECIAL |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
SPECIAL |= {mark: "\\" + mark for mark in "&%$#_{}"}


def tex(text: str) -> str:
    """One line of text with LaTeX's special characters escaped and control characters spelled out."""
    return "".join(SPECIAL.get(mark, mark) for mark in printable(text))


def cell(value: Value) -> str:
    shown = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")[value.place].format(tex(value.text))
    if value.interval is None:
        return shown
    low, high = value.interval
    return rf"{shown} {{\scriptsize [{low:.1f}, {high:.1f}]}}"


def latex(table: Table) -> str:
    """A booktabs table: needs \\usepackage{booktabs} and, for wide ones, graphicx."""
    shape = "l" * len(table.heads) + "r" * len(table.columns)
    body = [r"\toprule", " & ".join(map(tex, [*table.heads, *table.columns])) + r" \\"]
    for group in table.groups:
        body.append(r"\midrule")
        for names, values in group.items():
            body.append(" & ".join([*map(tex, names), *map(cell, values.values())]) + r" \\")
    inner = "\n".join([rf"\begin{{tabular}}{{{shape}}}", *body, r"\bottomrule", r"\end{tabular}"])
    facts = [*table.notes, *(f"{name}: {text}." for name, text in origins(table.runs))]
    return "\n".join(
        [
            r"\begin{table}[p]",
            r"\centering",
            rf"\caption{{{tex(table.title)}}}",
            rf"\resizebox{{\ifdim\width>\linewidth\linewidth\else\width\fi}}{{!}}{{{inner}}}",
            r"\par\smallskip{\footnotesize\raggedright " + tex(" ".join(facts)) + r"\par}",
            r"\end{table}",
            "",
        ]
    )


def document(folders: list[Path]) -> str:
    """A document that compiles by itself; its tables can be copied out."""
    parts = [r"\documentclass{article}", r"\usepackage{booktabs,graphicx}", r"\begin{document}"]
    for section in report(folders).sections:
        parts += [rf"\section*{{{tex(section.title)}}}", *map(tex, section.notes)]
        parts += [*map(latex, section.tables), r"\clearpage"]
    return "\n".join([*parts, r"\end{document}", ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m studies.latex", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="as `voidpad report` takes them")
    print(document(parser.parse_args().folders), end="")
