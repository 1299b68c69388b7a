# expect: failed
import os
import sys
from contextlib import suppress

gained = []

for folder in sys.modules["voidpad.sandbox"].__path__:
    with suppress(OSError):
        gained.append(os.listdir(folder))
