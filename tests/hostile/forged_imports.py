# expect: failed
# Modules that the checks might import are replaced, in this process.
import builtins
import sys

for name in ("math", "operator", "functools", "collections"):
    sys.modules[name] = sys.modules["candidate"]
builtins.__import__ = lambda *args, **named: sys.modules["candidate"]
sys.meta_path.clear()
