"""Memory of the process: keep what was freed, instead of handing it back to the kernel after every pass."""

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # glibc's mallopt
LARGEST = 32 << 20  # the most glibc accepts for the last


def keep_freed_memory() -> None:
    """Tensors of a pass are megabytes; by default each is mapped, zeroed and unmapped anew, a third of the time.

    For commands, which own their process. Other C libraries than glibc are left as they are.
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
