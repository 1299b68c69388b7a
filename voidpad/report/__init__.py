"""Run folders -> the paper's tables and figures, as Markdown, LaTeX and HTML."""

from voidpad.report.pages import Report, as_html, as_latex, as_markdown, report

__all__ = ["Report", "as_html", "as_latex", "as_markdown", "report"]
