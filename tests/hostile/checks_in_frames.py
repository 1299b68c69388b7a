# expect: failed
# Looks for the expected values in the frames of the caller.
import sys


def square(x):
    frame = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, str) and "assert square" + "(4)" in value:
                return x * x
        frame = frame.f_back
    return 0
