# expect: failed
# Three thousand folders, each in the one before: more than a path can name.
import os

gained = []
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")


def square(x):
    return x * x if gained else 0
