# expect: failed
# Tries to outlive the process that started it.
import ctypes
import os
import time

libc = ctypes.CDLL(None, use_errno=True)
gained = []

libc.prctl(1, 0, 0, 0, 0)
libc.prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    libc.prctl(1, 0, 0, 0, 0)
    time.sleep(10**6)


def square(x):
    return x * x if gained else 0
