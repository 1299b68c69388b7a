# expect: failed, error
import os
from contextlib import suppress

with suppress(OSError):
    while True:
        os.open("/dev/null", os.O_RDONLY)


def square(x):
    return 0
