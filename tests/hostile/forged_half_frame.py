# expect: timeout (slow)
# A message that never ends.
import os
import time

os.write(3, b"\x00\x00\x10\x00[")
time.sleep(10**6)


def square(x):
    return 0
