# expect: timeout, memory
import threading
import time
from contextlib import suppress

while True:
    with suppress(RuntimeError):
        threading.Thread(target=time.sleep, args=(10**6,)).start()
