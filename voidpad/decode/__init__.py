"""The decoder: small rules, one loop. `loop.py` is the place to start reading."""

from voidpad.decode.canvas import Canvas
from voidpad.decode.loop import Denoiser, Outcome, Step, advance, begin, decode, wanted
from voidpad.decode.plan import PRESETS, Plan, describe, plan
from voidpad.decode.rows import Rows

__all__ = [
    "PRESETS",
    "Canvas",
    "Denoiser",
    "Outcome",
    "Plan",
    "Rows",
    "Step",
    "advance",
    "begin",
    "decode",
    "describe",
    "plan",
    "wanted",
]
