# expect: opaque, failed, error
# A dictionary whose keys are plain where it is made and not where it is read.


class Key(tuple):
    def __hash__(self):
        return 1


def square(x):
    return {Key(([1],)): 9}
