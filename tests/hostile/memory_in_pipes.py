# expect: failed, memory, timeout, error (slow)
# Memory of the kernel, in pipes that nobody reads.
import fcntl
import os
from contextlib import suppress

gained = 0
with suppress(OSError):
    while True:
        read, write = os.pipe()
        os.set_blocking(write, False)
        with suppress(OSError):
            fcntl.fcntl(write, 1031, 1 << 20)
        with suppress(BlockingIOError):
            while True:
                gained += os.write(write, bytes(1 << 16))
gained = gained > 600 << 20
