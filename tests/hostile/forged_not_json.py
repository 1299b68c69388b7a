# expect: opaque
import os
import struct

os.write(3, struct.pack("!I", 5) + b"\xff\xfe\x00ok")


def square(x):
    return 0
