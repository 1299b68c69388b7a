"""Run programs that nobody vouches for, and learn whether they pass their checks."""

from voidpad.sandbox.api import Limits, ProgramTest, Sandbox, Verdict, layers

__all__ = ["Limits", "ProgramTest", "Sandbox", "Verdict", "layers"]
