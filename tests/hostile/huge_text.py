# expect: memory, opaque (slow)


def square(x):
    return "x" * (1 << 33)
