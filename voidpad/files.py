"""Files and folders that are whole or absent."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from voidpad.errors import ConfigError


def not_a_plain_file(path: Path) -> str:
    """Why this name cannot become a file: it is something else already. Empty for a plain file or a new name."""
    if not path.exists() or path.is_file():
        return ""
    return "is a folder; name a file in it" if path.is_dir() else "is no plain file; name another file"


def same_file(one: Path, other: str | Path) -> bool:
    """Whether two names lead to one file; names of files that are not there, or cannot be, lead to none."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def refuse_own_source(target: Path, *sources: str | Path | None) -> None:
    """Refuse to write to a file that is read: what it holds would be lost."""
    if any(source is not None and same_file(target, source) for source in sources):
        raise ConfigError(f"{target}: is read too, and would be overwritten; name another file to write.")


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name to write to; when the block ends well it takes the place of `path`, otherwise nothing is left.

    A pipe, a socket or a device is refused: as root, the new file would take its place.
    """
    if special := not_a_plain_file(path):
        raise ConfigError(f"{path}: {special}.")
    draft = path.with_name(f".{path.stem}.part{path.suffix}")  # what it ends in may say what to write
    try:
        draft.unlink(missing_ok=True)  # left by a process that was killed
        draft.touch()
        mode = draft.stat().st_mode  # safetensors would let only the owner read its files
        draft.unlink()
        yield draft
        draft.chmod(mode)
        with draft.open("rb") as file:
            os.fsync(file.fileno())  # or a machine that stops may keep the name without the content
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def store(path: Path, parts: Iterable[str]) -> None:
    """A text file."""
    with beside(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.writelines(parts)


def check_new_folder(target: Path) -> None:
    """Refuse the name of a folder that would be overwritten; an empty folder may be filled."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: already exists; choose another folder or remove it.")


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete."""
    check_new_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield beside
        beside.chmod(0o755)  # mkdtemp makes it private
        for path in beside.iterdir():  # and so does the writer of the tensors
            path.chmod(path.stat().st_mode | 0o044)
        beside.replace(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
