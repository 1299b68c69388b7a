"""Building the page: a template, one style sheet, one script, and the traces as data."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from voidpad.diagnose.trace import Trace, records

SCRIPTS = ("replay.js", "words.js", "charts.js", "pane.js", "card.js", "app.js")  # in the order they depend
# What could end the data block or start another one, spelt so that only JSON can read it back.
_SPELT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True)
class Named:
    """A trace and what to call it on the page, usually its file's name."""

    name: str
    trace: Trace


def page(traces: Sequence[Named]) -> str:
    """The whole page as text; the first two traces are shown side by side."""
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in SCRIPTS)
    parts = {"csp": policy(style, script), "style": style, "script": script, "data": embedded(traces)}
    return Template(_asset("page.html")).substitute(parts)


def embedded(traces: Sequence[Named]) -> str:
    """The traces as JSON that is inert inside HTML: ASCII, free of anything a parser of markup reacts to."""
    payload = {"traces": [_payload(one) for one in traces]}
    return json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_SPELT)


def policy(style: str, script: str) -> str:
    """Only this style sheet and this script, and no request to anywhere."""
    allowed = [
        "default-src 'none'",
        f"style-src {_digest(style)}",
        f"script-src {_digest(script)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    ]
    return "; ".join(allowed)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _payload(one: Named) -> dict[str, Any]:
    header, *passes, end = records(one.trace)
    return {"name": one.name, "header": header, "passes": passes, "end": end}


def _asset(name: str) -> str:
    return (files("voidpad.diagnose.page") / "assets" / name).read_text(encoding="utf-8").strip()
