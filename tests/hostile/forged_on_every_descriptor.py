# expect: exited, opaque
import os
from contextlib import suppress

for fd in range(256):
    with suppress(OSError):
        os.write(fd, b'["passed", ""]')
os._exit(0)
