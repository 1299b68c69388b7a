# expect: exited, error


class Abort(BaseException):
    pass


def square(x):
    raise Abort("passed", "")
