# expect: failed
import os
from contextlib import suppress

gained = []
home = os.getcwd()
for act in (
    lambda: os.rename(home, home + "-moved"),
    lambda: os.rmdir(home),
    lambda: os.symlink("/", home + "-link"),
):
    with suppress(OSError):
        act()
        gained.append(act)
