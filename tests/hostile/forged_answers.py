# expect: failed, error, opaque
# Speaks the wire's own language, ahead of every question.
import os
import struct
import time

for _ in range(100):
    for answer in (b'["ok", null, [], false]', b'["ok", true, [], false]', b'["ok", ["list"], [], false]'):
        os.write(3, struct.pack("!I", len(answer)) + answer)
time.sleep(0.2)
