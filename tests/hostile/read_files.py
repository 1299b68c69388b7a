# expect: failed
import glob
import os
import sys
from contextlib import suppress

gained = []
repository = next(iter(sys.modules["voidpad.sandbox"].__path__))
wanted = ["/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/1/environ", "/proc/self/environ", "/sys"]
wanted += [
    repository + "/checker.py",
    repository + "/../../pyproject.toml",
    "/root/.bashrc",
    "/var/log",
    "/home",
    "/boot",
    "/run/secrets",
]
for pattern in ("/root/*", "/home/*", "/root/.ssh/*", "/proc/[0-9]*/cmdline"):
    wanted += glob.glob(pattern)
for path in wanted:
    with suppress(OSError):
        gained.append(os.listdir(path) if os.path.isdir(path) else os.open(path, os.O_RDONLY))
