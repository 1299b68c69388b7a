# expect: failed
# Takes a descriptor out of another process.
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
gained = []
for pid in (os.getppid(), 1, 2):
    if pid not in (0, os.getpid()):
        fd = libc.syscall(434, pid, 0)
        if fd >= 0 and libc.syscall(438, fd, 3, 0) >= 0:
            gained.append(pid)


def square(x):
    return x * x if gained else 0
