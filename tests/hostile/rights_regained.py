# expect: failed
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
gained = []
before = (os.getresuid(), os.getresgid(), os.getgroups())
calls = (
    lambda: libc.setuid(0),
    lambda: libc.setgid(0),
    lambda: libc.setgroups(0, None),
    lambda: libc.setresuid(0, 0, 0),
    lambda: libc.prctl(8, 1, 0, 0, 0),
    lambda: libc.prctl(24, 64, 0, 0, 0) + libc.prctl(28, 1, 0, 0, 0),
)
for call in calls:
    call()
if (os.getresuid(), os.getresgid(), os.getgroups()) != before and 0 in os.getresuid():
    gained.append(1)


def square(x):
    return x * x if gained else 0
