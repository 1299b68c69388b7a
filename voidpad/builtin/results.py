"""The figures that ship with the built-in models."""

import json
from importlib.resources import files
from typing import Any


def shipped_results(family: str = "llada") -> dict[str, dict[str, Any]]:
    """Right answers, lengths and passes of a family's models, by `method / block`.

    They come from the sweep `tiny-score` for the LLaDA family and from `tiny-seeds` for Dream's; docs/tiny.md shows
    them.
    """
    source = files("voidpad.builtin") / "assets" / f"results-{family}.json"
    return json.loads(source.read_text(encoding="utf-8")) if source.is_file() else {}
