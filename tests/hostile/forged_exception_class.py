# expect: failed, error, opaque
# Names an exception so that the checks' own failure would be caught by it, and raises it.
import json
import os
import struct

for names in (
    ["AssertionError"],
    ["StopChecks", "AssertionError"],
    ["x", "BaseException"],
    [[]],
    ["__class__"],
):
    for value in (["exception", *names], ["type", *names]):
        body = json.dumps(["ok", ["tuple", "value", value], [], False]).encode()
        os.write(3, struct.pack("!I", len(body)) + body)


def square(x):
    raise AssertionError
