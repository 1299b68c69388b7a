# expect: timeout
def square(x):
    while True:
        x += 1
