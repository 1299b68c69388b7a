"""Runs untrusted programs against trusted checks and says whether they pass; see docs/sandbox.md."""

from voidpad.sandbox.api import Sandbox, SandboxLimits, Verdict, layers
from voidpad.sandbox.checker import ProgramTest

__all__ = ["ProgramTest", "Sandbox", "SandboxLimits", "Verdict", "layers"]
