# expect: failed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
    lambda: libc.umount2(b"/tmp", 2),
    lambda: libc.mount(b"none", b"/", None, 1 << 18, None),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
