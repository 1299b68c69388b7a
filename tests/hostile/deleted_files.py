# expect: failed, disk
# Files that are deleted while open still take space.
import os
from contextlib import suppress

gained = []

files, written = [], 0
with suppress(OSError):
    for number in range(200):
        file = open(f"f{number}", "wb", buffering=0)  # noqa: SIM115
        files.append(file)
        os.unlink(f"f{number}")
        written += file.write(bytes(2 << 20))
gained = written > 64 << 20
