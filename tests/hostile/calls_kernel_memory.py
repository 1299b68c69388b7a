# expect: failed
# System calls by number are those of x86-64; elsewhere they are others that are refused or harmless.
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.syscall(321, 0, 0, 0),
    lambda: libc.syscall(298, 0, 0, 0, 0, 0),
    lambda: libc.syscall(323, 0),
    lambda: libc.syscall(425, 8, ctypes.create_string_buffer(200)),
    lambda: libc.syscall(447, 0),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
