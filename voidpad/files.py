"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from voidpad.errors import ConfigError


def not_a_plain_file(path: Path) -> str:
    """Why this name cannot become a file: it is something else already. Empty for a plain file or a new name."""
    if not path.exists() or path.is_file():
        return ""
    return "is a folder; name a file in it" if path.is_dir() else "is no plain file; name another file"


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name to write to; when the block ends well it takes the place of `path`, otherwise nothing is left.

    A pipe, a socket or a device is refused: as root, the new file would take its place.
    """
    if special := not_a_plain_file(path):
        raise ConfigError(f"{path}: {special}.")
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
