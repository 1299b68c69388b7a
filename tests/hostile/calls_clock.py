# expect: failed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.clock_settime(0, (ctypes.c_long * 2)(0, 0)),
    lambda: libc.settimeofday((ctypes.c_long * 2)(0, 0), None),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
