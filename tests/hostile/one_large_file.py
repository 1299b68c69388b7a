# expect: error
import os

with open(os.path.join(os.environ["TMPDIR"], "file"), "wb") as file:
    while True:
        file.write(bytes(1 << 20))
