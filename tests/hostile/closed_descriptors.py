# expect: exited, killed, failed
# Closes the channel that the checks wait on.
import os

os.closerange(0, 64)


def square(x):
    return 0
