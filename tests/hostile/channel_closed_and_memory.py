# expect: memory, exited
# Closes its channel, so that its checks end, and only then takes memory, a part in each of several processes.
import os
import time

os.close(3)
time.sleep(0.5)
for _ in range(8):
    if os.fork() == 0:
        hoard = bytearray(b"x") * (150 << 20)
        time.sleep(10**6)
time.sleep(10**6)
