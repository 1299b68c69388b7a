# expect: failed
# Folders, each in the one before, deeper than a path can name and than Python can recurse.
import os

gained = []
for _ in range(1200):
    os.mkdir("dddd")
    os.chdir("dddd")


def square(x):
    return x * x if gained else 0
