"""What commands share on the terminal: a pair of consoles, progress bars, and records as tables, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from voidpad.files import store

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
Record = Mapping[str, Any]  # values by the names of their columns


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    err.print(text, style="dim", markup=False)


def warn(text: str) -> None:
    err.print(f"warning: {text}", style="yellow", markup=False)


def counting(*, shown: bool = True) -> Progress:
    """What is counted, how far, how many of how many, and the time left at the mean pace; a task's description is
    its label."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, disable=not shown, speed_estimate_period=1e9)


@contextmanager
def bar(total: int, *, label: str = "decoding", shown: bool = True) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal's standard error; calling the value it gives moves it by one."""
    with counting(shown=shown and err.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda *_: progress.advance(task)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first columns hold words, the others numbers. On a narrow terminal the last words wrap."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for place, head in enumerate(heads, 1):
        shown.add_column(
            head, justify="left" if place <= left else "right", overflow="fold", no_wrap=place != left
        )
    for row in rows:
        shown.add_row(*row)
    return shown


def print_records(records: Sequence[Record], *, left: int = 1) -> None:
    """Records as a table, a column for each name that has a value; a narrow terminal wraps it."""
    names = list(dict.fromkeys(name for one in records for name in one if one[name] is not None))
    rows = [[_cell(one.get(name)) for name in names] for one in records]
    width = out.width
    out.width = max(width, 240)  # a narrow one would leave out letters and numbers
    out.print(table([name.replace("_", " ") for name in names], rows, left=left))
    out.width = width


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.4g}"
    return str(value)


def print_json(value: Any) -> None:
    """One line of JSON. Numbers that JSON does not have (NaN, infinity) become null."""
    print(json.dumps(_finite(value)))


def _finite(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="null")


def write_csv(path: Path, records: Sequence[Record]) -> None:
    """The records as a CSV file; None and NaN are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_finite(records))
    store(path, [text.getvalue()])
