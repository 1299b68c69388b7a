"""A hook of MkDocs: pages that live outside docs/ are part of the site too.

The specification and the project's own pages stay where readers of the repository look for them; their links are
changed to the places the pages have in the site.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md")


def on_config(config: Any) -> Any:
    """Put pages of docs/ that the navigation does not name at the end of its "How to", so that none is forgotten."""
    listed = set(_pages(config.nav))
    [how_to] = [part["How to"] for part in config.nav if "How to" in part]
    how_to += [path.name for path in sorted(Path(config.docs_dir).glob("*.md")) if path.name not in listed]
    return config


def _pages(part: Any) -> list[str]:
    """The files named by a navigation or a part of one."""
    if isinstance(part, str):
        return [part]
    return [name for inner in (part.values() if isinstance(part, dict) else part) for name in _pages(inner)]


def on_files(files: Files, *, config: Any) -> Files:
    """Add spec/*.md under spec/, and the project's pages at the top."""
    outside = [*PROJECT, *(f"spec/{path.name}" for path in sorted((ROOT / "spec").glob("*.md")))]
    for name in outside:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links between docs/, spec/ and the repository's root, as they are inside the site."""
    name = page.file.src_uri
    if name.startswith("spec/"):
        return re.sub(r"\]\(\.\./docs/", "](../", markdown)
    if name in PROJECT:
        return re.sub(r"\]\(docs/", "](", markdown)
    return re.sub(r"\]\(\.\./(spec/|CONTRIBUTING|CHANGELOG|CODE_OF_CONDUCT)", r"](\1", markdown)
