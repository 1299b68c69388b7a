# expect: opaque, memory
def square(x):
    return "9" * (1 << 26)
