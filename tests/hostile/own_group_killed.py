# expect: failed, killed
import os
import signal

os.killpg(0, signal.SIGKILL)


def square(x):
    return 0
