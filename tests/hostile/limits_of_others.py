# expect: failed
# Lowers the limits of its parent and of the first processes.
import ctypes
import os
import resource
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []

for pid in (os.getppid() or 1, 1, 2, 3):
    if pid != os.getpid():
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))
            gained.append(pid)


def square(x):
    return x * x if gained else 0
