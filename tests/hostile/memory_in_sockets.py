# expect: failed, error, memory
# Data that waits in the buffers of sockets and pipes; sockets in flight take their buffers along.
import array
import fcntl
import os
import socket
from contextlib import suppress

block, total, pairs = bytes(1 << 16), 0, []
for _ in range(10_000):
    with suppress(OSError):
        a, b = socket.socketpair()
        a.setblocking(False)
        with suppress(OSError):
            a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        with suppress(OSError):
            while True:
                total += a.send(block)
        if pairs:
            with suppress(OSError):
                rights = array.array("i", [a.fileno(), b.fileno()])
                pairs[0][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                continue
        pairs.append((a, b))
for _ in range(1000):
    with suppress(OSError):
        r, w = os.pipe2(os.O_NONBLOCK)
        with suppress(OSError):
            fcntl.fcntl(w, 1031, 1 << 20)
        with suppress(OSError):
            while True:
                total += os.write(w, block)
gained = total > 256 << 20
