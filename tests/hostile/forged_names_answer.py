# expect: opaque
# Answers every question for a name with a module of the checks' own.
import sys

frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if hasattr(value, "verbs"):
            value.verbs["name"] = lambda name: ("module", "operator")
    frame = frame.f_back
