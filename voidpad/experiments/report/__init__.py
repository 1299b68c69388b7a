"""Run folders -> one DataFrame -> tables and figures, as Markdown, HTML and CSV. `pages` puts them together."""
