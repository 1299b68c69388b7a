# expect: opaque, exited
import os
import pickle
import struct


class Bomb:
    def __reduce__(self):
        return os._exit, (0,)


body = pickle.dumps(Bomb())
os.write(3, struct.pack("!I", len(body)) + body)
