# expect: error, opaque
class Loud(Exception):
    def __str__(self):
        raise Loud

    __repr__ = __str__


def square(x):
    raise Loud("passed" * 10**6, Loud, Loud())
