# expect: failed
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
gained = []
pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
if pid > 0:
    gained.append(pid)


def square(x):
    return x * x if gained else 0
