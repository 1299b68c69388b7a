# expect: failed
import fcntl
import termios
from contextlib import suppress

gained = []

for fd in range(0, 16):
    with suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCSTI, b"x")
        gained.append(fd)


def square(x):
    return x * x if gained else 0
