# expect: failed, opaque
# Writes a verdict on every descriptor when the process ends.
import atexit
import os
from contextlib import suppress


def write():
    for fd in range(3, 64):
        with suppress(OSError):
            os.write(fd, b'["passed", ""]')


atexit.register(write)
