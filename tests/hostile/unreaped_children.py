# expect: failed
import os

for _ in range(12):
    if os.fork() == 0:
        os._exit(0)


def square(x):
    return 0
