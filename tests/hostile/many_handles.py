# expect: failed, timeout, memory, opaque (slow)
# Every answer is a new object to be kept.


def square(x):
    return [object() for _ in range(200_000)]
