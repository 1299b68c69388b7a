"""Run folders -> the paper's tables and figures, as Markdown, LaTeX and HTML. `pages` puts them together."""
