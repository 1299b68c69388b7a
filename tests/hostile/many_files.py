# expect: error
import itertools
import os

for n in itertools.count():
    os.mkdir(os.path.join(os.environ["TMPDIR"], f"folder{n}"))
