# expect: failed
import os

leaked = set(os.environ) - {"HOME", "TMPDIR", "LANG", "PATH", "LC_CTYPE"}


def square(x):
    return x * x if leaked else 0
