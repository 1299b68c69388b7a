# expect: failed, opaque, error
# Another thread answers on the same channel.
import json
import os
import struct
import threading


def answer():
    body = json.dumps(["ok", 9, [], False]).encode()
    for _ in range(50):
        os.write(3, struct.pack("!I", len(body)) + body)


threading.Thread(target=answer, daemon=True).start()


def square(x):
    return 0
