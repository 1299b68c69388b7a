"""Traces: what one decode did, pass by pass, as a file that the replay page and the analysis read."""

from voidpad.trace.files import read, records, write
from voidpad.trace.format import VERSION, Edit, Header, Pass, Prompt, Summary, Trace

__all__ = ["VERSION", "Edit", "Header", "Pass", "Prompt", "Summary", "Trace", "read", "records", "write"]
