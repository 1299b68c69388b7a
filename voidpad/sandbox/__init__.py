"""Run programs that nobody vouches for, and learn whether they pass their checks."""

from voidpad.sandbox.api import Limits, Sandbox, Verdict, layers

__all__ = ["Limits", "Sandbox", "Verdict", "layers"]
