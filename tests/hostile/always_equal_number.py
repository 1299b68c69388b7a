# expect: opaque
# A subclass of int: the number crosses, its methods stay behind.
class Anything(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def square(x):
    return Anything(0)
