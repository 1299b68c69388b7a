# expect: failed
import ctypes
import socket
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []

for path in (
    "/run/dbus/system_bus_socket",
    "/var/run/docker.sock",
    "/run/systemd/notify",
    "/dev/log",
    "\0abstract",
):
    with suppress(OSError):
        socket.socket(socket.AF_UNIX).connect(path)
        gained.append(path)


def square(x):
    return x * x if gained else 0
