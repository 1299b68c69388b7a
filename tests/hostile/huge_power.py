# expect: timeout, memory (slow)


def square(x):
    return 9 ** (9**9)
