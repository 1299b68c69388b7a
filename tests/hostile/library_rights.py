# expect: failed
import os
from contextlib import suppress

gained = []
for act in (
    lambda: os.chmod(os.__file__, 0o777),
    lambda: os.utime(os.__file__, (0, 0)),
    lambda: os.chown(os.__file__, 65534, 65534),
    lambda: os.setxattr(os.__file__, "user.x", b"y"),
    lambda: os.truncate(os.__file__, 0),
    lambda: os.link(os.__file__, "linked"),
    lambda: os.rename(os.__file__, "moved"),
    lambda: os.unlink(os.__file__),
    lambda: os.symlink("x", os.path.join(os.path.dirname(os.__file__), "voidpad-hostile")),
):
    with suppress(OSError):
        act()
        gained.append(act)
