# expect: memory
# Shared memory that its owner drops from its own count, and fills once more in the next process.
import mmap
import os
import time

SIZE = 200 << 20
for _ in range(8):
    if os.fork() == 0:
        block = mmap.mmap(-1, SIZE)
        for at in range(0, SIZE, 4096):
            block[at] = 1
        block.madvise(mmap.MADV_DONTNEED)
        time.sleep(10**6)
time.sleep(10**6)
