# expect: failed
# Looks for the text of the checks among all objects of the process.
import gc

wanted = "square(4) ==" + " 16"
gained = [
    o
    for o in gc.get_objects()
    if isinstance(o, dict)
    and any(wanted in str(v) for v in list(o.values())[:50] if isinstance(v, str) and v is not wanted)
]
gained = [o for o in gained if o is not globals()]


def square(x):
    return x * x if gained else 0
