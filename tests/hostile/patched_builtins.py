# expect: failed, exited
import builtins
import operator

for name in ("abs", "all", "any", "len", "isinstance", "bool", "int", "round", "sum", "hash", "id"):
    setattr(builtins, name, lambda *args: True)
builtins.AssertionError = type("AssertionError", (Exception,), {"__new__": lambda *args: None})
operator.eq = lambda a, b: True
