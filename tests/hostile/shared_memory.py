# expect: failed
# Memory that no limit per process counts.
import ctypes
import os
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
got = []
with suppress(OSError):
    got.append(os.memfd_create("hoard"))
got += ["shm"] if libc.shmget(0, 1 << 20, 0o1600) >= 0 else []
got += ["queue"] if libc.msgget(0, 0o1600) >= 0 else []


def square(x):
    return x * x if got else 0
