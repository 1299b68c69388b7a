"""What commands share on the terminal: one pair of consoles, one kind of progress bar, and paths to write to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from voidpad.errors import ConfigError
from voidpad.files import not_a_plain_file

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps")


def counting(*, shown: bool = True) -> Progress:
    """What is counted, how far, how many of how many, and the time left; a task's description is its label."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, disable=not shown)


@contextmanager
def bar(total: int, *, label: str = "decoding", shown: bool = True) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal's standard error; calling the value it gives moves it by one."""
    with counting(shown=shown and err.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda *_: progress.advance(task)


# Callbacks of options that name an output: what cannot be written is refused before the work, not after it.


def file_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """A file whose folders may have to be made."""
    if value is None:
        return None
    if special := not_a_plain_file(value):
        raise ConfigError(f"{param.opts[0]} {value}: {special}.")
    return _reachable(param, value)


def picture_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in PICTURES:
        raise ConfigError(f"{param.opts[0]} {value}: a picture's name ends in .png, .pdf or .svg; rename it.")
    return file_to_write(param, value)


def folder_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """A folder that is there, or can be made."""
    if value is None:
        return None
    if not (value.is_dir() and os.access(value, os.W_OK)):
        _reachable(param, value / "file")
    return value


def _reachable(param: typer.CallbackParam, value: Path) -> Path:
    """The nearest thing above it that exists must be a folder that takes new files."""
    above = next(place for place in value.absolute().parents if place.exists())
    if not above.is_dir():
        raise ConfigError(f"{param.opts[0]} {value}: {above} is a file; choose another place.")
    if not os.access(above, os.W_OK):
        raise ConfigError(f"{param.opts[0]} {value}: {above} may not be written; choose another place.")
    return value
