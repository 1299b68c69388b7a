"""The page at `/`: a chat beside the replay page's canvas, drawn while the server decodes."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from voidpad.decode.fields import Range
from voidpad.decode.plan import schema
from voidpad.diagnose.page import PageExtension, page

if TYPE_CHECKING:
    from voidpad.serve.requests import ServedModel

HIDDEN = ("cut",)  # fields that requests may not set


def live_page(served: ServedModel, *, keys: bool) -> str:
    """The HTML of the page. Its form is made from the schema of the plans; nothing in it is secret."""
    about: dict[str, Any] = {
        "model": served.name,
        "plan": served.plan_name,
        "key": keys,
        "plans": {name: _plan_fields(served, name) for name in served.model.decoding.presets},
    }
    return page(
        [],
        PageExtension(
            name="live",
            aside=_asset("chat.html"),
            style=_asset("chat.css"),
            script=_asset("chat.js"),
            data={"server": about},
        ),
    )


def _plan_fields(served: ServedModel, name: str) -> list[dict[str, Any]]:
    """The fields of a preset for the form: name, type, default, bounds, choices and help."""
    shown = []
    for field in schema(name, served.model.decoding, calibration=served.model.card.calibration):
        if field.name in HIDDEN:
            continue
        default = served.fields.get(field.name, field.default) if name == served.plan_name else field.default
        bounds = field.bounds or Range()
        shown.append(
            {
                "name": field.name,
                "type": field.type,
                "default": ",".join(map(str, default)) if isinstance(default, tuple) else default,
                "at_least": bounds.above if bounds.at_least is None else bounds.at_least,
                "at_most": bounds.at_most,
                "choices": list(field.choices) or None,
                "help": field.help,
            }
        )
    return shown


def _asset(name: str) -> str:
    return (files("voidpad.serve") / "assets" / name).read_text(encoding="utf-8").strip()
