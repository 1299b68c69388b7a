# expect: opaque
# A message that claims to be four gigabytes long.
import os

os.write(3, b"\xff\xff\xff\xff")


def square(x):
    return 0
