# expect: failed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.unshare(0x10000000),
    lambda: libc.unshare(0x20000),
    lambda: libc.setns(0, 0),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
