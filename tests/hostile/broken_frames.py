# expect: opaque, exited
import os

os.write(3, b"\xff" * 1000 + b"\n")
