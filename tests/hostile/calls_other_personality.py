# expect: failed
# System calls by number are those of x86-64; elsewhere they are others that are refused or harmless.
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.personality(0x0040000),
    lambda: libc.iopl(3),
    lambda: libc.ioperm(0x80, 1, 1),
    lambda: libc.syscall(154, 1, 0, 0),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
