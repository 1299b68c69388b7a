# expect: opaque
import os

os.write(3, b"\xff\xfe\x00ok\n")


def square(x):
    return 0
