# expect: failed
import os
from contextlib import suppress

gained = [] if os.getuid() and os.geteuid() and os.getgid() else ["root already"]
for act in (
    lambda: os.setuid(0),
    lambda: os.setgid(0),
    lambda: os.setresuid(0, 0, 0),
    lambda: os.setgroups([0]),
    lambda: os.nice(-5),
    lambda: os.chown(os.environ["TMPDIR"], 0, 0),
):
    with suppress(OSError):
        act()
        gained.append(act)
