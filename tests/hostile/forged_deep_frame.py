# expect: opaque (slow)
# A message nested deeper than a parser's stack.
import os

os.write(3, b"[" * 200_000 + b"]" * 200_000 + b"\n")


def square(x):
    return 0
