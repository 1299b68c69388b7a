# expect: memory, timeout (slow)
# A part in each of several processes, none of which is over the limit.
import mmap
import os
import time

for _ in range(6):
    if os.fork() == 0:
        shared, private = mmap.mmap(-1, 100 << 20), bytearray(100 << 20)
        for at in range(0, 100 << 20, 4096):
            shared[at] = private[at] = 1
        time.sleep(10**6)
time.sleep(10**6)
