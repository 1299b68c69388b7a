"""The decoder: small rules, one loop. `loop.py` is the place to start reading."""

from voidpad.decode.canvas import Canvas
from voidpad.decode.commit import BlockProgress
from voidpad.decode.fields import DecodingRule, PlanField, setting
from voidpad.decode.length import LengthRule
from voidpad.decode.loop import Denoiser, Step, advance, begin, decode, wanted
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import PRESETS, FamilyDefaults, Plan, describe, plan, schema
from voidpad.decode.rows import Rows

__all__ = [
    "PRESETS",
    "BlockProgress",
    "Canvas",
    "DecodingRule",
    "Denoiser",
    "FamilyDefaults",
    "LengthRule",
    "Outcome",
    "Plan",
    "PlanField",
    "Rows",
    "Step",
    "advance",
    "begin",
    "decode",
    "describe",
    "plan",
    "schema",
    "setting",
    "wanted",
]
