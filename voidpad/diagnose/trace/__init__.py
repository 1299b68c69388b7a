"""Traces: what one decode did, pass by pass, as a file that the replay page and the analysis read."""

from voidpad.diagnose.trace.format import VERSION, Edit, Header, Pass, Prompt, Trace, read, records, write
from voidpad.diagnose.trace.recorder import Recorder

__all__ = [
    "VERSION",
    "Edit",
    "Header",
    "Pass",
    "Prompt",
    "Recorder",
    "Trace",
    "read",
    "records",
    "write",
]
