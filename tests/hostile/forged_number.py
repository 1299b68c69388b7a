# expect: opaque
# A number that equals everything, where it is not decoded as a plain one.


class Any(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def square(x):
    return Any(5)
