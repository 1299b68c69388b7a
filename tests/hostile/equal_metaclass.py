# expect: opaque
class Meta(type):
    def __eq__(cls, other):
        return True

    __hash__ = type.__hash__


class square(metaclass=Meta):
    def __new__(cls, x):
        return cls
