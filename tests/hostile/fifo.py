# expect: timeout (slow)
# Waits on a pipe with a name for somebody who never comes.
import os

gained = []
os.mkfifo("pipe")
with open("pipe") as pipe:
    pipe.read()


def square(x):
    return x * x if gained else 0
