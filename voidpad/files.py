"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name to write to; when the block ends well it takes the place of `path`, otherwise nothing is left."""
    draft = path.with_name(f".{path.stem}.part{path.suffix}")  # what it ends in may say what to write
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())  # or a machine that stops may keep the name without the content
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def store(path: Path, parts: Iterable[str]) -> None:
    """A text file."""
    with beside(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.writelines(parts)
