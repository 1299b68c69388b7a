# expect: failed
import os
import subprocess
import sys
from contextlib import suppress

gained = []
for command in ("/bin/sh", "/bin/true", "/usr/bin/env", sys.executable, "/lib64/ld-linux-x86-64.so.2"):
    with suppress(OSError, subprocess.SubprocessError):
        gained.append(subprocess.run([command, "--version"], timeout=1, check=False).returncode)
with suppress(OSError):
    gained += ["system"] if os.system("true") == 0 else []
