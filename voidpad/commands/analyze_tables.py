"""What the analyses of `voidpad analyze` show alike: plain tables, shares, numbers for JSON, CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from voidpad.files import store

if TYPE_CHECKING:
    from voidpad.diagnose.overflow import Answer

Right = Sequence[bool | None]


def plain_table(*heads: str) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for place, head in enumerate(heads):
        shown.add_column(head, justify="right" if place else "left", no_wrap=True)
    return shown


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    store(path, [text.getvalue()])


def json_number(value: float | None, digits: int = 4) -> float | None:
    """For JSON, which has no NaN."""
    return None if value is None or value != value else round(value, digits)


def percent(hits: int, count: int) -> str:
    return f"{hits}/{count} ({100 * hits / count:.0f} %)"


def any_known(right: Right) -> bool:
    return any(one is not None for one in right)


def answer_row(answer: Answer, right: bool | None) -> dict[str, Any]:
    """An answer as a line of a CSV file."""
    return {**answer.facts(), "right": "" if right is None else right}
