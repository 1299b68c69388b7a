# expect: timeout, failed
# Answers nobody asked for, with long remarks.
import json
import os
import struct

body = json.dumps(["ok", 0, [], ["x" * 100_000]]).encode()


def square(x):
    for _ in range(100_000):
        os.write(3, struct.pack("!I", len(body)) + body)
    return 0
