# expect: error


def square(x):
    raise AssertionError("every check passed")
