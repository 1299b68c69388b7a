# expect: failed
# System calls by number are those of x86-64; elsewhere they are others that are refused or harmless.
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.syscall(248, b"user", b"a", b"b", 1, -3),
    lambda: libc.syscall(250, 0, -3, 1),
    lambda: libc.syscall(249, b"user", b"a", None, 0),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
