"""Reading files with errors of one line, and writing files and folders that are complete or absent."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, VoidpadError, WeightsError, first_line


@contextmanager
def readable(path: Path, kind: str, error: type[VoidpadError] = WeightsError) -> Iterator[None]:
    """Inside, what goes wrong while a file or folder is read becomes one line that names it.

    `kind` says what it should be, such as "JSON"; `error` is the class to raise. Parsers raise many types of exception
    on damaged files; voidpad's own errors pass through unchanged, and so does a lack of memory.
    """
    try:
        yield
    except (VoidpadError, MemoryError):
        raise
    except FileNotFoundError:
        raise error(f"{path}: no such file.") from None
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror or first_line(problem)}).") from None
    except Exception as problem:
        if type(problem).__name__ == "OutOfMemoryError":  # torch's
            raise
        what = f"{type(problem).__name__}: {first_line(problem)}"
        raise error(f"{path}: damaged {kind} file ({what}); copy or write it again.") from problem


def read_json(path: Path, error: type[VoidpadError] = WeightsError) -> dict[str, Any]:
    """The JSON object in a file that must be there."""
    with readable(path, "JSON", error):
        values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise error(f"{path}: expected a JSON object; copy or write the file again.")
    return values


def refuse_own_source(target: Path, *sources: str | Path | None) -> None:
    """Refuse to write to a file that is read: what it holds would be lost."""
    for source in sources:
        with suppress(OSError, ValueError):  # one of them is not there
            if source is not None and target.samefile(source):
                raise ConfigError(
                    f"{target}: is read too, and would be overwritten; name another file to write."
                )


def open_own(path: Path) -> int:
    """Open or create a file of a run folder to write to. A link is refused: its target is not ours to change."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(
                f"{path}: is a symbolic link, which is not followed for writing; remove it."
            ) from None
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another folder.") from None


@contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """A run folder, made if need be, in which no other process can work in this way: it gets the error `busy`.

    The system releases the lock when the process ends, however it ends.
    """
    import fcntl  # where it is missing, the rest of the command line works

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; choose another folder.") from None
    lock = open_own(folder / ".lock")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(busy) from None
        yield
    finally:
        os.close(lock)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Inside, an error of the system names this path, and not the draft beside it, which nobody asked for."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A name to write to. When the block ends without an error, that file replaces `path`; otherwise it is removed.

    Every writer has a name of its own: of two at once, the one that ends last leaves its file, whole. A pipe, a socket
    or a device is refused: as root, the new file would take its place.
    """
    if path.exists() and not path.is_file():
        what = "a folder; name a file in it" if path.is_dir() else "no plain file; name another file"
        raise ConfigError(f"{path}: is {what}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    # It ends as the file does: writers read there what to write.
    writer = f"{platform.node()}-{os.getpid()}-{threading.get_ident()}"
    draft = path.with_name(f".{path.stem}.{writer}.part{path.suffix}")
    with _named(path):
        draft.touch()
    try:
        mode = draft.stat().st_mode  # safetensors would let only the owner read its files
        yield draft
        draft.chmod(mode)
        with draft.open("rb") as file:
            os.fsync(file.fileno())  # or a machine that stops may keep the name without the content
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def store(path: Path, parts: Iterable[str]) -> None:
    """Write a text file; readers see the old content or all of the new one."""
    with atomic_file(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.writelines(parts)


def check_new_folder(target: Path) -> None:
    """Refuse the name of a folder that would be overwritten; an empty folder may be filled."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: already exists; choose another folder or remove it.")


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which appears under its name only when the block ends without an error."""
    check_new_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _named(target):
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)  # mkdtemp makes it private
        for path in filter(Path.is_file, draft.iterdir()):
            path.chmod(path.stat().st_mode | 0o044)  # the writer of the tensors makes them private
            with path.open("rb") as file:
                os.fsync(file.fileno())  # or a machine that stops may keep the name without the content
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
