# expect: opaque, failed, error
# Asks the checks' process to act before it was asked anything.
import json
import os

for verb, target in (
    ("call", ["type", "int"]),
    ("call", ["yours", 0]),
    ("getattr", ["yours", 0]),
    ("exec", "1"),
):
    os.write(3, json.dumps(["do", [verb, ["tuple", target, "9"], ["tuple"]], []]).encode() + b"\n")
