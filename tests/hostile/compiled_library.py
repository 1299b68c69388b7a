# expect: failed
import os
import py_compile
from contextlib import suppress

gained = []

for path in (os.__file__, os.path.dirname(os.__file__) + "/sitecustomize.py"):
    with suppress(OSError):
        py_compile.compile(os.__file__, cfile=path + "c", doraise=True)
        gained.append(path)
