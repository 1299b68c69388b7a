# expect: failed
# Changes what is returned while it is on its way out, to something that is only equal here.
import sys


class Any:
    def __eq__(self, other):
        return True


sys.setprofile(lambda frame, event, arg: None)
sys.settrace(lambda frame, event, arg: None)


def square(x):
    return 0
