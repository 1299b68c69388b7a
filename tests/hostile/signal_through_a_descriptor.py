# expect: failed
# The kernel is asked to send SIGKILL to another process when data arrives.
import ctypes
import fcntl
import os
import socket
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []

a, b = socket.socketpair()
for command, value in ((8, os.getppid() or 1), (10, 9)):
    with suppress(OSError):
        fcntl.fcntl(a, command, value)
        gained.append(command)


def square(x):
    return x * x if gained else 0
