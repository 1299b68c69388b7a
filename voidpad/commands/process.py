"""What a command sets up in its own process: memory, garbage collection and CPU threads.

A library leaves these to its caller. A command owns its process, and is often run beside other programs.
"""

from __future__ import annotations

import atexit
import gc
import os
from typing import TYPE_CHECKING

from voidpad.engine.memory import keep_freed_memory

if TYPE_CHECKING:
    from voidpad.models import Model

# OpenMP threads that wait for work spin by default. Beside other processes each spinning thread keeps a core from
# the very thread it waits for. The GNU runtime (torch's on Linux), Intel's and LLVM's read different variables.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
# Multiply-adds of one forward pass that are worth a thread: about 20 ms of work, in a hundred parallel regions.
WORTH_A_THREAD = 1_000_000_000
TOKENS = 256  # of a typical row: prompt and canvas


def prepare_process() -> None:
    """Set up the process of a command. Call before torch is imported, because OpenMP reads its variables then."""
    keep_freed_memory()
    # Imports create half a million objects that stay. With the default threshold of 700 the collector walks over
    # them again and again, which is a quarter of the start-up time.
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)  # at exit the collector would walk over them once more, for a second
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)


def fit_threads(model: Model, *, rows: int) -> None:
    """Use as many CPU threads as passes of so many rows can feed, unless the user has set OMP_NUM_THREADS.

    A small model has so little work in each parallel region that its threads mostly wait for each other; on a busy
    machine that takes twelve times as long as one thread.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    parameters = sum(parameter.numel() for parameter in model.net.parameters())
    worth = parameters * TOKENS * rows // WORTH_A_THREAD
    torch.set_num_threads(max(1, min(torch.get_num_threads(), worth)))
