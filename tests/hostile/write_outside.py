# expect: failed
import os
import sys
from contextlib import suppress

# /dev/shm is the jail's own, as /tmp is; the test looks whether the machine's has changed.
gained = []
with suppress(OSError):
    open("/dev/shm/voidpad-hostile", "w").close()
folders = ["/", "/dev", "/var/tmp", "/proc", "/etc", "/root", "/home", "/lib", "/usr/lib", "/mnt"]
folders += [os.path.dirname(os.__file__), sys.base_prefix, *sys.modules["voidpad.sandbox"].__path__]
link = os.path.join(os.environ["TMPDIR"], "link")
os.symlink("/", link)
for folder in [*folders, link, os.environ["TMPDIR"] + "/.."]:
    for act in (
        lambda path: open(path, "w").close(),
        os.mkdir,
        lambda path: os.symlink("/", path),
        os.mkfifo,
    ):
        with suppress(OSError):
            act(os.path.join(folder, "voidpad-hostile"))
            gained.append(folder)
with suppress(OSError):
    os.remove(os.__file__)
    gained.append(os.__file__)
