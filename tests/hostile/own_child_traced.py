# expect: failed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
if libc.ptrace(0, 0, 0, 0) == 0:
    gained.append(1)


def square(x):
    return x * x if gained else 0
