# expect: memory
# Each process stays below the limit of one process; together they do not.
import os
import time

for _ in range(8):
    if os.fork() == 0:
        hoard = bytearray(b"x") * (150 << 20)
        time.sleep(10**6)
time.sleep(10**6)
