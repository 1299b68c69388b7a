# expect: failed
import ctypes
import fcntl
import os
import socket
import struct
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []

a, b = socket.socketpair()
for request in (0x8901, 0x8902):
    with suppress(OSError):
        fcntl.ioctl(a, request, struct.pack("i", os.getppid() or 1))
        gained.append(request)


def square(x):
    return x * x if gained else 0
