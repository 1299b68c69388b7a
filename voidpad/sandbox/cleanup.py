"""Removes what a program leaves behind: processes and files."""

import os
import signal
import stat
import time
from collections.abc import Iterable
from contextlib import suppress

from voidpad.sandbox.usage import descendants

_KILL_INTERVAL = 0.001  # seconds between two rounds of killing descendants


def kill(pid: int) -> None:
    """Kill and reap a process; if it is the first of a PID namespace, the kernel kills all others in it."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def kill_descendants() -> None:
    """Kill every descendant of this process.

    All are stopped first, because a running process can fork faster than it is killed, and this is repeated until
    none is left, because one can be forked between two listings.
    """
    with suppress(
        ChildProcessError
    ):  # no child is left, and so no descendant: orphans become children of this process
        while True:
            stopped: set[int] = set()
            while new := set(descendants()) - stopped:
                _signal(new, signal.SIGSTOP)
                stopped |= new
            _signal(stopped, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_KILL_INTERVAL)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def remove_tree(top: str) -> None:
    """Remove a folder that a program filled: with any rights, any names, and nested to any depth.

    The walk goes down and up by one descriptor, so that no path gets long and no folder is searched twice. The
    processes of the program have ended, so nothing changes meanwhile.
    """
    with suppress(OSError):
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        path: list[bytes] = []
        waiting = [_remove_files(fd)]  # the folders that are left at each level
        while waiting:
            if waiting[-1]:
                name = waiting[-1].pop()
                path.append(name)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = inner
                waiting.append(_remove_files(fd))
            else:
                waiting.pop()
                if path:
                    outer = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
                    os.close(fd)
                    fd = outer
                    os.rmdir(path.pop(), dir_fd=fd)
        os.close(fd)
        os.rmdir(top)


def _remove_files(folder: int) -> list[bytes]:
    """Remove what is not a folder; the names of the folders, which may now be entered and changed."""
    folders = []
    for name in map(os.fsencode, os.listdir(folder)):
        entry = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        if stat.S_ISDIR(os.fstat(entry).st_mode):
            os.chmod(f"/proc/self/fd/{entry}", 0o700)
            folders.append(name)
        else:
            os.unlink(name, dir_fd=folder)
        os.close(entry)
    return folders
