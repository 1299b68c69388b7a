"""Traces: what one decode did, pass by pass, as a file that the replay page and the analysis read."""

from voidpad.trace.files import read, records, write
from voidpad.trace.format import VERSION, Edit, Header, Pass, Prompt, Summary, Trace
from voidpad.trace.recorder import Recorder

__all__ = [
    "VERSION",
    "Edit",
    "Header",
    "Pass",
    "Prompt",
    "Recorder",
    "Summary",
    "Trace",
    "read",
    "records",
    "write",
]
