"""The host's part in a pass on a CPU: how many threads compute it, how they wait, and what becomes of freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# OpenMP threads that wait for work spin by default. Beside other processes each spinning thread keeps a core from
# the very thread it waits for. The GNU runtime (torch's on Linux), Intel's and LLVM's read different variables.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
# Multiply-adds of one forward pass that are worth a thread: about 20 ms of work, in a hundred parallel regions.
WORTH_A_THREAD = 1_000_000_000
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # glibc's mallopt
LARGEST = 32 << 20  # the most glibc accepts for the last


def wait_passively() -> None:
    """Let OpenMP threads sleep while they wait, unless the user has said otherwise.

    OpenMP reads its variables when torch is imported, so `import voidpad` calls this. In a process that has imported
    torch before, only the choice of threads (`threads_for`) keeps small models from waiting for spinning threads.
    """
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """Inside, torch uses as many CPU threads as this many multiply-adds can feed, at most as many as outside.

    A small model has so little work in each parallel region that its threads mostly wait for each other; on a busy
    machine that takes twelve times as long as one thread. A number that the user has set by OMP_NUM_THREADS stays, and
    so does torch's own where `work` is 0, unknown.
    """
    import torch

    before = torch.get_num_threads()
    chosen = max(1, min(before, work // WORTH_A_THREAD))
    if not work or "OMP_NUM_THREADS" in os.environ or chosen == before:
        yield
        return
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
