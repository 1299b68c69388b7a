# expect: failed, error
import sys
import types

fake = types.ModuleType("math")
fake.isclose = lambda *args, **named: True
sys.modules["math"] = fake
math = fake


def square(x):
    return -1
