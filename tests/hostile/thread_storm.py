# expect: failed, error, timeout, memory (slow)
# Threads that each start two more until the limit.
import threading
import time
from contextlib import suppress


def storm():
    with suppress(RuntimeError):
        for _ in range(2):
            threading.Thread(target=storm, daemon=True).start()
    time.sleep(0.2)


storm()
