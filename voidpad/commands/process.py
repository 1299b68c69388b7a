"""What a command sets up in its own process: memory and garbage collection.

A library leaves these to its caller. CPU threads and how they wait are the engine's affair (`engine/host.py`).
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from voidpad.engine.host import keep_freed_memory


def prepare_process() -> None:
    """Set up the process of a command. Call before torch is imported."""
    keep_freed_memory()
    # Imports create half a million objects that stay. With the default threshold of 700 the collector walks over
    # them again and again, which is a quarter of the start-up time.
    gc.set_threshold(100_000, 20, 20)


def leave(status: int) -> NoReturn:
    """End the process of a command: what was registered for the exit runs, and the rest is left to the system.

    Python would walk over all objects once more, for a second, and libraries would report those that are left.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(status)


@contextmanager
def quick_interrupt() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once. Meant for imports, where nothing has begun that could be lost.

    Some packages catch the KeyboardInterrupt that Python would raise inside their import, and carry on without it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: object) -> None:
        os.write(2, b"voidpad: interrupted\n")
        os._exit(130)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
