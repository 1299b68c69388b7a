# expect: failed
import os
import subprocess
import sys
from contextlib import suppress

ran = []
for command in ("/bin/sh", "/bin/true", "/usr/bin/env", sys.executable, "/lib64/ld-linux-x86-64.so.2"):
    with suppress(OSError, subprocess.SubprocessError):
        ran.append(subprocess.run([command, "--version"], timeout=1, check=False).returncode)
with suppress(OSError):
    ran += ["system"] if os.system("true") == 0 else []


def square(x):
    return x * x if ran else 0
