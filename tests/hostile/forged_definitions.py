# expect: failed
# Claims to define the names that the checks use, through the caller's frames.
import sys

frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if isinstance(value, dict) and "call" in value:
            value["defines"] = lambda wanted: list(wanted)[:1]
    frame = frame.f_back


def square(x):
    return 0
