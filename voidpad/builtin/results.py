"""The figures of the full run that ship with the built-in model."""

import json
from importlib.resources import files
from typing import Any


def shipped_results() -> dict[str, dict[str, Any]]:
    """The results of the sweep `tiny-score`, by `method / block`; docs/tiny.md shows them."""
    source = files("voidpad.builtin") / "assets" / "results.json"
    return json.loads(source.read_text(encoding="utf-8")) if source.is_file() else {}
