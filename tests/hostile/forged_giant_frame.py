# expect: opaque
# A message that never ends.
import os
from contextlib import suppress

with suppress(OSError):
    while True:
        os.write(3, bytes(1 << 20))


def square(x):
    return 0
