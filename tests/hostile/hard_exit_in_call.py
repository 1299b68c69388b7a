# expect: exited
import os


def square(x):
    os._exit(0)
