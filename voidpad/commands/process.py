"""What a command sets up in its own process, and how it ends; a library leaves this to its caller.

CPU threads and how they wait are the engine's affair (`engine/host.py`).
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from voidpad.engine.host import keep_freed_memory


def prepare_process() -> None:
    """Set up the process of a command. Call before torch is imported."""
    keep_freed_memory()
    # Imports create half a million objects that stay. With the default threshold of 700 the collector walks over
    # them again and again, which is a quarter of the start-up time.
    gc.set_threshold(100_000, 20, 20)


def leave(status: int) -> NoReturn:
    """End the process of a command without Python's last collection.

    That would walk over all objects for a second. Freezing the objects instead leaves them to libraries that report
    what is left: with torch 2.15, nanobind prints thirty lines. What a program may rely on is done as usual: threads
    are awaited, functions registered for the exit run (they also await child processes), and open files are flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for one in gc.get_objects():
        if issubclass(type(one), io.BufferedWriter | io.BufferedRandom | io.TextIOWrapper):
            with suppress(OSError, ValueError):  # closed, or its reader has gone
                one.flush()
    os._exit(status)


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
