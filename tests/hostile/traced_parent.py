# expect: failed
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
gained = []
for pid in (os.getppid(), 1, 2):
    if pid not in (0, os.getpid()) and libc.ptrace(16, pid, 0, 0) == 0:
        gained.append(pid)


def square(x):
    return x * x if gained else 0
