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
