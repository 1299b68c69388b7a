# expect: failed
import os
from contextlib import suppress

gained = []
for path in (
    "/etc/passwd",
    "/etc/shadow",
    "/root/.ssh",
    "/root/.bash_history",
    "/home",
    "/proc/1/environ",
    "/var/log",
    "/run/secrets",
    "/proc/self/environ",
    "/boot",
    "/etc/hostname",
):
    with suppress(OSError):
        gained.append(os.listdir(path) if os.path.isdir(path) else open(path).read())  # noqa: SIM115


def square(x):
    return x * x if gained else 0
