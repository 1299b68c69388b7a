# expect: opaque
from collections import defaultdict


class Any(defaultdict):
    def __eq__(self, other):
        return True


def square(x):
    return Any(int)
