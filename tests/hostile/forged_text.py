# expect: exited
import os
import sys

for stream in (sys.stdout, sys.stderr):
    print('["passed", ""]', "passed", "OK", "1 passed in 0.01s", sep="\n", file=stream, flush=True)
os._exit(0)
