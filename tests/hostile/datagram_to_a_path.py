# expect: failed
# A pair of datagram sockets can send to sockets with names.
import ctypes
import socket
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []

with suppress(OSError):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    gained.append(1)


def square(x):
    return x * x if gained else 0
