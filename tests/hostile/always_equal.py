# expect: opaque
class Anything:
    __hash__ = None

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


def square(x):
    return Anything()
