"""peft without bitsandbytes. Import peft through this module first; `voidpad.models` does.

Where bitsandbytes is installed, peft imports it at once and again asks for it at every adapter, which takes 0.7
seconds and prints a warning on machines without a GPU. Only quantized weights need it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Inside the context, peft sees no bitsandbytes, unless it has been imported already.

    Afterwards everything is as before: quantized layers can be made later in the same process.
    """
    if "bitsandbytes" in sys.modules:
        yield
        return
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment]  # Python's way to say: cannot be imported
    try:
        yield
    finally:
        del sys.modules["bitsandbytes"]
        from peft import import_utils

        import_utils.is_bnb_available.cache_clear()
        import_utils.is_bnb_4bit_available.cache_clear()


with without_bitsandbytes():
    import peft  # noqa: F401
