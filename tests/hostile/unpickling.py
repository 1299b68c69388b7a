# expect: opaque
import os


class Bomb:
    def __reduce__(self):
        return os._exit, (0,)

    __reduce_ex__ = __reduce__
    __getstate__ = __copy__ = __deepcopy__ = __reduce__


def square(x):
    return Bomb()
