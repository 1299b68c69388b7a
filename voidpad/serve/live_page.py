"""The page at `/`: a chat beside the replay page's canvas, drawn while the server decodes."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from voidpad.decode.plan import PRESETS, schema
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
        "plans": {name: plan_fields(served, name) for name in PRESETS},
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


def plan_fields(served: ServedModel, name: str) -> list[dict[str, Any]]:
    """The fields of a preset for the form: name, type, default, bounds, choices and help."""
    shown = []
    for field in schema(name, served.model.family.decoding):
        if field.name in HIDDEN:
            continue
        default = served.fields.get(field.name, field.default) if name == served.plan_name else field.default
        shown.append(
            {
                "name": field.name,
                "type": field.type.__name__ if isinstance(field.type, type) else str(field.type),
                "default": default
                if isinstance(default, str | int | float | bool)
                else ",".join(map(str, default or ())),
                "at_least": field.at_least,
                "at_most": field.at_most,
                "choices": list(field.choices) if field.choices else None,
                "help": field.help,
            }
        )
    return shown


def _asset(name: str) -> str:
    return (files("voidpad.serve") / "assets" / name).read_text(encoding="utf-8").strip()
