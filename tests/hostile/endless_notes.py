# expect: timeout, failed
# Remarks instead of answers.
import json
import os
import struct

body = json.dumps(["note", "x" * 100_000]).encode()


def square(x):
    for _ in range(100_000):
        os.write(3, struct.pack("!I", len(body)) + body)
    return 0
