# expect: failed
# System calls by number are those of x86-64; elsewhere they are others that are refused or harmless.
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.syscall(256, os.getppid() or 1, 8, b"\0" * 8, b"\0" * 8),
    lambda: libc.syscall(279, os.getppid() or 1, 0, 0, 0, 0, 0),
    lambda: libc.syscall(440, 3, 0, 0, 4, 0),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
