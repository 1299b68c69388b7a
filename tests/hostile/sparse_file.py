# expect: failed
from contextlib import suppress

gained = []
with suppress(OSError), open("sparse", "wb") as file:
    file.truncate(1 << 40)
    gained.append(1)


def square(x):
    return x * x if gained else 0
