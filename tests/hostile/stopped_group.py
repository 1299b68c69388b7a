# expect: timeout, failed, killed (slow)
# Stops every process it may reach.
import os
import signal
from contextlib import suppress

for pid in (0, -1):
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
