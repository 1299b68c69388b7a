# expect: failed, error, opaque
# Speaks the wire's own language, ahead of every question.
import os
import time

for _ in range(100):
    os.write(3, b'["ok", [null], []]\n["ok", [true], []]\n["ok", [["@", 0]], [["list", null]]]\n')
time.sleep(0.2)
