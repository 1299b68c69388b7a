# expect: failed
# System calls by number are those of x86-64; elsewhere they are others that are refused or harmless.
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.chroot(b"."),
    lambda: libc.syscall(155, b".", b"."),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
