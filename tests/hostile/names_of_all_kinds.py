# expect: failed
import os

gained = []
for name in (
    b"\xff\xfe",
    b"a\nb",
    b" ",
    b"-rf",
    b"...",
    "\u202e".encode(),
    b"x" * 255,
    b"$(touch x)",
    b"\x1b[31m",
):
    os.mkdir(name)
    open(os.path.join(name, name), "w").close()


def square(x):
    return x * x if gained else 0
