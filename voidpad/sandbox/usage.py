"""Measures what the processes of a program use together: memory, and disk where no file system bounds it."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

# A shared mapping without a file: "7f..-7f.. rw-s 00000000 00:01 1234 /dev/zero (deleted)".
_SHARED = re.compile(r"^(\w+)-(\w+) ...s (\w+) (\S+) (\d+) +/dev/zero \(deleted\)", re.MULTILINE)
MAX_FILES = 4096


def memory_exceeds(pids: list[int], limit: int) -> bool:
    """Whether processes use more memory together than `limit` bytes.

    Resident pages are cheap to count, but count twice what two processes share and omit shared memory that no
    process has touched since another one filled it. So the whole of each shared mapping is added, and before a
    program is stopped the resident pages are counted again, each divided among the processes that share it.
    """
    shared = _shared_mappings(pids)
    return _resident(pids) + shared > limit and _proportional(pids) + shared > limit


def _proc_texts(pids: Iterable[int], name: str) -> Iterator[str]:
    """The file `name` of each process that still exists."""
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/{name}", errors="replace") as file:
            yield file.read()


def _resident(pids: Iterable[int]) -> int:
    pages = sum(int(text.split()[1]) for text in _proc_texts(pids, "statm") if text)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _proportional(pids: Iterable[int]) -> int:
    """Private memory and each process's part of what it shares by fork; shared mappings are counted apart."""
    sizes = re.findall(
        r"^Pss_(?:Anon|File): +(\d+) kB", "".join(_proc_texts(pids, "smaps_rollup")), re.MULTILINE
    )
    return 1024 * sum(map(int, sizes))


def _shared_mappings(pids: Iterable[int]) -> int:
    """Bytes of anonymous memory that is mapped as shared, each piece of it counted once for all processes."""
    ends: dict[tuple[str, str], int] = {}
    for text in _proc_texts(pids, "maps"):
        for first, last, offset, device, inode in _SHARED.findall(text):
            key, end = (device, inode), int(offset, 16) + int(last, 16) - int(first, 16)
            ends[key] = max(ends.get(key, 0), end)
    return sum(ends.values())


def disk_use(home: str, pids: Iterable[int]) -> tuple[int, int]:
    """Bytes and number of the files below `home`, and of deleted ones that a process still has open."""
    sizes: dict[int, int] = {}
    waiting = [home]
    while waiting and len(sizes) <= MAX_FILES:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    sizes[info.st_ino] = 512 * info.st_blocks
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(entry.path)
    for pid in pids:
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with suppress(OSError):
                    info = entry.stat()
                    if stat.S_ISREG(info.st_mode) and not info.st_nlink:
                        sizes[info.st_ino] = 512 * info.st_blocks
    return sum(sizes.values()), len(sizes)


def descendants() -> list[int]:
    """The processes below this one."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # a process may call itself anything
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue
    pids = [os.getpid()]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids[1:]
