# expect: failed
import os
from contextlib import suppress

gained = []
os.makedirs("a/b/c")
open("a/b/c/file", "w").close()
os.mkdir("zero", 0)
for path in ("a/b/c/file", "a/b/c", "a/b", "a"):
    with suppress(OSError):
        os.chmod(path, 0)


def square(x):
    return x * x if gained else 0
