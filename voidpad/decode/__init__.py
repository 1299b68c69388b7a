"""The decoder: small rules, one loop. `loop.py` is the place to start reading."""

from voidpad.decode.commit import BlockProgress, CommitRule, Proposed
from voidpad.decode.length import LengthRule
from voidpad.decode.loop import Denoiser, Step, advance, begin, decode, wanted
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.presets import PRESETS, FamilyDefaults, describe, plan, schema
from voidpad.decode.propose import ProposeRule, SlotProposal
from voidpad.decode.rows import Rows
from voidpad.decode.rules import Rule
from voidpad.decode.stop import StopRule

__all__ = [
    "PRESETS",
    "BlockProgress",
    "CommitRule",
    "Denoiser",
    "FamilyDefaults",
    "LengthRule",
    "Outcome",
    "Plan",
    "ProposeRule",
    "Proposed",
    "Rows",
    "Rule",
    "SlotProposal",
    "Step",
    "StopRule",
    "advance",
    "begin",
    "decode",
    "describe",
    "plan",
    "schema",
    "wanted",
]
