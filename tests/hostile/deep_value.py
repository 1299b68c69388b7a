# expect: failed
def square(x):
    value = []
    for _ in range(10**5):
        value = [value]
    return value
