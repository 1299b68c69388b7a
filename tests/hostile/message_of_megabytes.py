# expect: error (slow)


def square(x):
    raise ValueError("x" * (4 << 20))
