"""The replay page: one HTML file that shows recorded decodes and asks nothing of the network.

It is a template, one style sheet, one script, and the traces as data.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from voidpad.diagnose.trace import Trace, records

SCRIPTS = ("replay.js", "words.js", "charts.js", "pane.js", "card.js", "app.js")  # in the order they depend
# Characters that could end the data block or start another one, as JSON escapes.
_ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True)
class Named:
    """A trace and what to call it on the page, usually its file's name."""

    name: str
    trace: Trace


@dataclass(frozen=True)
class PageExtension:
    """What another page adds to the replay page: a column on the left, its style, script and data."""

    name: str
    aside: str
    style: str
    script: str
    data: Mapping[str, Any]


def page(traces: Sequence[Named], extension: PageExtension | None = None) -> str:
    """The whole page as text; the first two traces are shown side by side.

    Without an extension the page asks nothing of the network; with one it may talk to its own server.
    """
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in SCRIPTS)
    if extension is not None:
        style, script = f"{style}\n{extension.style}", f"{script}\n{extension.script}"
    # Only this style sheet and this script run, and nothing is asked of anybody but the page's own server.
    policy = [
        "default-src 'none'",
        "connect-src 'self'" if extension else "connect-src 'none'",
        f"style-src {_digest(style)}",
        f"script-src {_digest(script)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    ]
    parts = {
        "name": extension.name if extension else "replay",
        "aside": extension.aside if extension else "",
        "csp": "; ".join(policy),
        "style": style,
        "script": script,
        "data": embedded(traces, extension.data if extension else {}),
    }
    return Template(_asset("page.html")).substitute(parts)


def embedded(traces: Sequence[Named], more: Mapping[str, Any] | None = None) -> str:
    """The traces as JSON that is inert inside HTML: ASCII, free of anything a parser of markup reacts to."""
    payload: dict[str, Any] = {"traces": [], **(more or {})}
    for one in traces:
        header, *passes, end = records(one.trace)
        payload["traces"].append({"name": one.name, "header": header, "passes": passes, "end": end})
    return json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("voidpad.diagnose.page") / "assets" / name).read_text(encoding="utf-8").strip()
