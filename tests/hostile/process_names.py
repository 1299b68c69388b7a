# expect: failed
# Names itself like the process that watches it, with brackets and line breaks.
import ctypes
import os
import time

libc = ctypes.CDLL(None, use_errno=True)
gained = []

libc.prctl(15, b") S 1 1 1 (\n", 0, 0, 0)
for _ in range(5):
    if os.fork() == 0:
        libc.prctl(15, b"python) Z 0", 0, 0, 0)
        os.setsid()
        time.sleep(10**6)


def square(x):
    return x * x if gained else 0
