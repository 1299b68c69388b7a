# expect: failed
# System calls by number are those of x86-64; elsewhere they are others that are refused or harmless.
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.syscall(304, -100, b"12345678", 0),
    lambda: libc.syscall(
        303, -100, b"/", ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0
    ),
    lambda: libc.fanotify_init(0, 0),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
