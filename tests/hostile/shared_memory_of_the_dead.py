# expect: memory
# Shared memory that short-lived children fill, while the parent that keeps it has touched none of it.
# Nine processes at most: with more than the sandbox allows, a fork would be refused before the memory is full.
import mmap
import os
import time

SIZE = 200 << 20
for _ in range(4):
    if os.fork() == 0:
        block = mmap.mmap(-1, SIZE)
        if os.fork() == 0:
            for at in range(0, SIZE, 4096):
                block[at] = 1
            os._exit(0)
        os.wait()
        time.sleep(10**6)
time.sleep(10**6)
