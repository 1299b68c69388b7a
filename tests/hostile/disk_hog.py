# expect: error
import itertools
import os

for n in itertools.count():
    with open(os.path.join(os.environ["TMPDIR"], f"file{n}"), "wb") as file:
        file.write(bytes(1 << 20))
