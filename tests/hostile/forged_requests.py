# expect: opaque, failed, error
# Asks the checks' process to act before it was asked anything.
import json
import os
import struct

for verb, target in (
    ("call", ["type", "int"]),
    ("call", ["yours", 0]),
    ("getattr", ["yours", 0]),
    ("exec", "1"),
):
    body = json.dumps(["do", verb, [target, "9"], []]).encode()
    os.write(3, struct.pack("!I", len(body)) + body)


def square(x):
    return 0
