"""The progress bar of every command that counts things."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def counting(console: Console, *, shown: bool = True) -> Progress:
    """What is counted, how far, how many of how many, and the time left; a task's description is its label."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not shown)
