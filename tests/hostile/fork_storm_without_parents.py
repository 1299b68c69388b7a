# expect: failed, timeout, memory (slow)
# Every process ends as soon as it has a child, so that none can be followed.
import os
import time
from contextlib import suppress

if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        with suppress(OSError):
            if os.fork():
                os._exit(0)
    os._exit(0)


def square(x):
    return 0
