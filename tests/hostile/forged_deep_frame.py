# expect: opaque (slow)
# A message nested deeper than a parser's stack.
import os
import struct

body = b"[" * 200_000 + b"]" * 200_000
os.write(3, struct.pack("!I", len(body)) + body)


def square(x):
    return 0
