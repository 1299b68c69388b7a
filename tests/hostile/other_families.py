# expect: failed
import ctypes
import socket
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []

for family in (2, 10, 16, 17, 38, 40, 30, 29, 44):
    for kind in (1, 2, 3):
        with suppress(OSError):
            socket.socket(family, kind)
            gained.append(family)


def square(x):
    return x * x if gained else 0
