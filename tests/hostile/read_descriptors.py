# expect: failed
# Looks for the checks (and so for the answers) in descriptors and in the memory it was forked with.
import gc
import os
from contextlib import suppress


def search():
    needle = "".join(("square", "(3) ", "== 9"))  # never whole in this program's own text or names
    held = [value for value in gc.get_objects() if isinstance(value, list | tuple | dict)]
    found = [value for value in held if needle in repr(value)[: 10**6]]
    for fd in [*range(3), *range(4, 256)]:
        with suppress(OSError):
            found += [fd] if needle.encode() in os.pread(fd, 1 << 16, 0) else []
    return found


leaked = search()


def square(x):
    return x * x if leaked else 0
