"""Runs untrusted programs against trusted checks and says whether they pass; see docs/sandbox.md."""

from voidpad.sandbox.api import ProgramTest, Sandbox, SandboxLimits, Verdict, layers

__all__ = ["ProgramTest", "Sandbox", "SandboxLimits", "Verdict", "layers"]
