# expect: failed
# Something to outlive the verdict with: finalizers, exit handlers, threads that are not daemons.
import atexit
import threading
import time


class Last:
    def __del__(self):
        time.sleep(10**6)


last = Last()
atexit.register(time.sleep, 10**6)
threading.Thread(target=time.sleep, args=(10**6,)).start()
