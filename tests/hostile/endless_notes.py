# expect: timeout, failed, opaque
# Answers nobody asked for, with long remarks.
import json
import os

line = json.dumps(["ok", [0], ["x" * 100_000]]).encode() + b"\n"


def square(x):
    for _ in range(100_000):
        os.write(3, line)
    return 0
