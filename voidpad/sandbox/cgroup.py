"""A memory control group: the kernel's own limit for the memory of all processes of a program together.

It counts what no sum over processes counts, such as shared memory that no process has mapped any more and the
kernel's buffers, and it cannot be outrun. Where none can be created, a program has one process only, whose address
space is limited.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_PREFIX = "voidpad-sandbox-"


@dataclass(frozen=True)
class MemoryGroup:
    """The open files of a control group, version 1 or 2; the supervisor process inherits them."""

    members: int  # cgroup.procs
    limit: int
    events: int

    def join(self) -> None:
        """Move this process into the group; its later children will be in it too."""
        os.write(self.members, b"0")

    def set_limit(self, size: int) -> None:
        """The limit for the next program; a group that is still being emptied keeps the one it has."""
        with suppress(OSError):
            os.pwrite(self.limit, str(size).encode(), 0)

    def kills(self) -> int:
        """How many processes the kernel has killed because of the limit."""
        count = re.search(rb"^oom_kill (\d+)", os.pread(self.events, 4096, 0), re.MULTILINE)
        return int(count[1]) if count else 0


def create() -> tuple[str, MemoryGroup] | None:
    """A new group below this process's own and its folder, or None where that is not possible."""
    for folder, limit, events in _candidates():
        _remove_stale(folder)
        path = os.path.join(folder, f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}")
        files = {"cgroup.procs": os.O_WRONLY, limit: os.O_WRONLY, events: os.O_RDONLY}
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            return path, MemoryGroup(
                *(os.open(os.path.join(path, name), mode) for name, mode in files.items())
            )
        except OSError:
            os.rmdir(path)
    return None


def remove(path: str, *, seconds: float) -> None:
    """Remove a group; the processes in it have been killed and may take a moment to disappear."""
    end = time.monotonic() + seconds
    while os.path.isdir(path) and time.monotonic() < end:
        with suppress(OSError):
            os.rmdir(path)
        time.sleep(0.01)


def _candidates() -> Iterator[tuple[str, str, str]]:
    """Folders where a memory group may be created, each with the names of its limit and its event counter."""
    with suppress(OSError), open("/proc/self/cgroup") as own, open("/proc/self/mountinfo") as mounts:
        groups = [line.rstrip("\n").split(":", 2) for line in own]
        for fields in map(str.split, mounts):
            point, kind, options = fields[4], fields[fields.index("-") + 1], fields[-1].split(",")
            for number, controllers, path in groups:
                if kind == "cgroup" and "memory" in options and "memory" in controllers.split(","):
                    yield os.path.normpath(point + path), "memory.limit_in_bytes", "memory.oom_control"
                if kind == "cgroup2" and number == "0":
                    for folder in (path, os.path.dirname(path)):
                        yield os.path.normpath(point + folder), "memory.max", "memory.events"


def _remove_stale(folder: str) -> None:
    """Remove groups of processes that were killed before they could."""
    with suppress(OSError):
        for name in os.listdir(folder):
            owner = re.fullmatch(_PREFIX + r"(\d+)-\w+", name)
            if owner and not os.path.exists(f"/proc/{owner[1]}"):
                with suppress(OSError):
                    os.rmdir(os.path.join(folder, name))
