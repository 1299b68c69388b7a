# expect: timeout (slow)


class Loop:
    def __del__(self):
        while True:
            pass


def square(x):
    Loop()
    return 0
