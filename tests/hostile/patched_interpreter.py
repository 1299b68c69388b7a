# expect: failed
# Rewrites whatever Python code it finds in its process, the sandbox's own included.
import sys


def yes(*args, **named):
    return "passed", ""


for module in list(sys.modules.values()):
    if getattr(module, "__name__", "").startswith("voidpad.sandbox.checker"):
        module.judge = module.main = yes
sys.settrace(lambda *args: None)
sys.excepthook = yes
