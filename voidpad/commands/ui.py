"""What commands share on the terminal: one pair of consoles, one kind of progress bar, tables, and files to write."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer import Option

from voidpad.errors import ConfigError
from voidpad.files import store

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps")


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    err.print(text, style="dim", markup=False)


def warn(text: str) -> None:
    err.print(f"warning: {text}", style="yellow", markup=False)


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


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first columns hold words, the others numbers."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for place, head in enumerate(heads):
        shown.add_column(head, justify="left" if place < left else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    store(path, [text.getvalue()])


# Options that name an output: a place that takes no files is refused before the work, not after it.


def can_be_written(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """A callback: the nearest folder above the output that exists must take new files."""
    if value is None:
        return None
    above = next(place for place in value.absolute().parents if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        wrong = "may not be written" if above.is_dir() else "is a file"
        raise ConfigError(f"{param.opts[0]} {value}: {above} {wrong}; choose another place.")
    return value


def _picture(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in PICTURES:
        raise ConfigError(f"{param.opts[0]} {value}: a picture's name ends in .png, .pdf or .svg; rename it.")
    return can_be_written(param, value)


def output_file(default: Any, help: str, *names: str) -> Any:
    return Option(default, *names, help=help, dir_okay=False, writable=True, callback=can_be_written)


def output_folder(default: Any, help: str, *names: str) -> Any:
    return Option(default, *names, help=help, file_okay=False, writable=True, callback=can_be_written)


def output_picture(help: str) -> Any:
    return Option(None, help=help, dir_okay=False, writable=True, callback=_picture)
