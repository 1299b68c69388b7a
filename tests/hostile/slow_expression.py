# expect: timeout (slow)
import re


def square(x):
    return len(re.findall(r"(a+)+$", "a" * 40 + "b"))
