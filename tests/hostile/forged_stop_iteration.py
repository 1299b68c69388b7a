# expect: error


def square(x):
    raise StopIteration(9)
