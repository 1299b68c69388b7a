# expect: opaque, failed, error
# Says on its channel what the checks would say at their end.
import json
import os

for text in (
    ["passed", ""],
    ["ok", [None], []],
    ["ok", [["tuple", "value", 9]], []],
    ["passed", [""], []],
    {"passed": True},
):
    os.write(3, json.dumps(text).encode() + b"\n")
