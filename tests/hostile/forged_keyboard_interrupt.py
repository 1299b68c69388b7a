# expect: exited


def square(x):
    raise KeyboardInterrupt
