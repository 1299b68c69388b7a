# expect: exited


def square(x):
    raise GeneratorExit
