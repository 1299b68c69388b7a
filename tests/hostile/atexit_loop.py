# expect: failed, timeout (slow)
# The process never ends by itself.
import atexit


def loop():
    while True:
        pass


atexit.register(loop)


def square(x):
    return 0
