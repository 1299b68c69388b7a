# expect: failed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.shmget(0, 4096, 0o1600),
    lambda: libc.semget(0, 1, 0o1600),
    lambda: libc.msgget(0, 0o1600),
    lambda: libc.mq_open(b"/voidpad-hostile", 0o102, 0o600, None),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
