# expect: killed, error, memory
# The C stack ends before Python's own limit does.
import sys

sys.setrecursionlimit(10**9)


def square(x):
    return sorted([x], key=square)
