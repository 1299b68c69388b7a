# expect: failed, opaque, error
# Two processes answer the same questions.
import os

os.fork()


def square(x):
    return 0
