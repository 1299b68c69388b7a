"""Host memory: let the process keep what it has freed, instead of returning it to the kernel after every pass."""

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # glibc's mallopt
LARGEST = 32 << 20  # the most glibc accepts for the last


def keep_freed_memory() -> None:
    """Ask glibc to reuse freed memory for the tensors of the next pass.

    These are megabytes each; by default glibc maps, zeroes and unmaps them anew, which takes a third of the time. Only
    commands call this, because they own their process. Other C libraries are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(MMAP_THRESHOLD, LARGEST)
    mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(TOP_PAD, 64 << 20)
