# expect: failed
# Claims to define every name that the checks use, through the caller's frames.
import sys

frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if hasattr(value, "verbs"):
            value.verbs["name"] = lambda name: ("value", lambda *args: True)
    frame = frame.f_back
