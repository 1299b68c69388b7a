"""A memory control group: the kernel's own limit for the memory of all processes of a program together.

It counts what no sum over processes counts, such as shared memory that no process has mapped any more and the
kernel's buffers, and it cannot be outrun. Where no group can be created, the supervisor measures instead.
"""

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass

_PREFIX = "voidpad-sandbox-"
_REMOVE_SECONDS = 1.0


@dataclass(frozen=True)
class MemoryGroup:
    """A control group of version 1 or 2. Its files are open, because the supervisor soon changes its file tree."""

    path: str
    parent: int
    members: int  # cgroup.procs
    limit: int
    events: int

    def join(self) -> None:
        """Move this process into the group; its later children will be in it too."""
        with suppress(OSError):
            os.write(self.members, b"0")

    def set_limit(self, size: int) -> None:
        """The limit for the next program; a group that is still being emptied keeps the one it has."""
        with suppress(OSError):
            os.pwrite(self.limit, str(size).encode(), 0)

    def kills(self) -> int:
        """How many processes the kernel has killed because of the limit."""
        with suppress(OSError):
            count = re.search(rb"^oom_kill (\d+)", os.pread(self.events, 4096, 0), re.MULTILINE)
            return int(count[1]) if count else 0
        return 0

    def remove(self) -> None:
        """Remove the group; the processes in it have been killed and may take a moment to disappear."""
        end = time.monotonic() + _REMOVE_SECONDS
        while time.monotonic() < end:
            try:
                os.rmdir(os.path.basename(self.path), dir_fd=self.parent)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)


def create() -> MemoryGroup | None:
    """A new group below this process's own, or None where that is not possible."""
    for folder, limit, events in _candidates():
        _remove_stale(folder)
        path = os.path.join(folder, f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}")
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            return MemoryGroup(
                path,
                os.open(folder, os.O_RDONLY | os.O_DIRECTORY),
                os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY),
                os.open(os.path.join(path, limit), os.O_WRONLY),
                os.open(os.path.join(path, events), os.O_RDONLY),
            )
        except OSError:
            os.rmdir(path)
    return None


def _candidates() -> list[tuple[str, str, str]]:
    """Folders where a memory group may be created, each with the names of its limit and its event counter."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return []
    candidates = []
    for fields in mounts:
        point, kind, options = fields[4], fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup" and "memory" in options:
            own = [path for _, controllers, path in groups if "memory" in controllers.split(",")]
            files = ("memory.limit_in_bytes", "memory.oom_control")
        elif kind == "cgroup2":
            own = [path for number, _, path in groups if number == "0"]
            files = ("memory.max", "memory.events")
        else:
            continue
        for path in own:
            folders = [point + path, point + os.path.dirname(path)] if kind == "cgroup2" else [point + path]
            candidates += [(os.path.normpath(folder), *files) for folder in folders if os.path.isdir(folder)]
    return candidates


def _remove_stale(folder: str) -> None:
    """Remove groups whose supervisor was killed together with whoever started it."""
    with suppress(OSError):
        for name in os.listdir(folder):
            owner = re.fullmatch(_PREFIX + r"(\d+)-\w+", name)
            if owner and not os.path.exists(f"/proc/{owner[1]}"):
                with suppress(OSError):
                    os.rmdir(os.path.join(folder, name))
