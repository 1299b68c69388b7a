"""What a command sets up in its own process; a library leaves this to its caller.

CPU threads and how they wait are the engine's affair (`engine/host.py`).
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from voidpad.engine.host import keep_freed_memory


def prepare_process() -> None:
    """Set up the process of a command. Call before torch is imported."""
    keep_freed_memory()
    # Imports create half a million objects that stay. With the default threshold of 700 the collector walks over
    # them again and again, which is a quarter of the start-up time.
    gc.set_threshold(100_000, 20, 20)
    # Nor is it worth a second to collect them when the process ends.
    atexit.register(gc.freeze)


@contextmanager
def quick_interrupt() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once. Meant for imports, where nothing has begun that could be lost.

    Some packages catch the KeyboardInterrupt that Python would raise inside their import, and carry on without it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        os.write(2, b"voidpad: interrupted\n")
        os._exit(130)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
