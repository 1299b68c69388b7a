# expect: failed, error, opaque, exited, timeout
# The parent leaves; an orphan goes on speaking for it.
import os

if os.fork():
    os._exit(0)
os.setsid()


def square(x):
    return 0
