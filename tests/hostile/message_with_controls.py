# expect: error


def square(x):
    raise ValueError("\x1b[2J\x1b]0;title\x07\r\n\u202e\ud800\0" + "passed")
