# expect: failed, error, opaque
# Names an exception so that the checks' own failure would be caught by it, and raises it.
import json
import os

for names in (
    ["builtins.AssertionError"],
    ["voidpad.sandbox.wire.Stopped", "builtins.AssertionError"],
    ["x", "builtins.BaseException"],
    [[]],
    ["__class__"],
):
    for value in (["exception", *names], ["type", *names]):
        os.write(3, json.dumps(["ok", [["tuple", "value", value]], []]).encode() + b"\n")


def square(x):
    raise AssertionError
