# expect: failed, opaque, error
# Names that the checks look up could be anything, even a module of Python's own.
import operator

square = operator
