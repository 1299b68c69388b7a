# expect: failed
import os

gained = []
for number, target in enumerate(("/", "/etc/passwd", "..", "../..", os.getcwd(), "/proc/self", "loop")):
    os.symlink(target, f"link{number}")
os.symlink("loop", "loop")


def square(x):
    return x * x if gained else 0
