# expect: opaque
# True, and large, and of every length.


class Truth:
    def __bool__(self):
        return True

    def __len__(self):
        return 9

    def __getattr__(self, name):
        return lambda *args: True


def square(x):
    return Truth()
