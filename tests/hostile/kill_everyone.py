# expect: failed, exited, killed
import os
import signal
from contextlib import suppress

for target in (-1, 1, 2, 3, os.getppid()):
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        with suppress(OSError):
            if target:
                os.kill(target, number)
