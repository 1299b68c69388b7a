# expect: failed
# Rewrites the encoder so that every result is sent as nine.
import sys

wire = sys.modules["voidpad.sandbox.wire"]
wire.Exchange._encode = lambda self, value: 9


def square(x):
    return 0
