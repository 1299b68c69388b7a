# expect: failed
import ctypes
import os
import time

ctypes.CDLL(None).prctl(15, b"\xff\xfe) R 1", 0, 0, 0)  # PR_SET_NAME: no UTF-8, and like the end of a name
if os.fork() == 0:
    os.setsid()
    while True:
        time.sleep(1)


def square(x):
    return 0
