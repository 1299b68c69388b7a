"""The page at `/`: a chat beside the replay page's canvas, drawn while the server decodes."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from voidpad.builtin.tasks import TASKS, heldout
from voidpad.decode.presets import schema
from voidpad.diagnose.page import PageExtension, page
from voidpad.diagnose.questions import has_builtin_vocab

if TYPE_CHECKING:
    from voidpad.serve.requests import ServedModel

HIDDEN = ("cut",)  # fields that requests may not set


def live_page(served: ServedModel, *, keys: bool) -> str:
    """The HTML of the page. Its form is made from the schema of the plans; nothing in it is secret."""
    about: dict[str, Any] = {
        "model": served.name,
        "plan": served.plan_name,
        "key": keys,
        "examples": _examples(served),
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


def _examples(served: ServedModel) -> list[str]:
    """Prompts to click: problems of a built-in model that are one question each, everyday questions for any other."""
    if not has_builtin_vocab(served.model):
        return [
            "Why is the sky blue? Answer in two sentences.",
            "Write a Python function that reverses a list.",
        ]
    problems = [heldout(name, 1)[0] for name in TASKS]
    return [problem.prompt for problem in problems if not problem.before and not problem.gaps]


def _plan_fields(served: ServedModel, name: str) -> list[dict[str, Any]]:
    """The fields of a preset for the form: name, type, default, bounds, choices and help."""
    shown = []
    for field in schema(name, served.model.decoding, calibration=served.model.card.calibration):
        if field.name in HIDDEN:
            continue
        default = served.fields.get(field.name, field.default) if name == served.plan_name else field.default
        shown.append(
            {
                "name": field.name,
                "type": field.type,
                "default": ",".join(map(str, default)) if isinstance(default, tuple) else default,
                "at_least": field.above if field.at_least is None else field.at_least,
                "at_most": field.at_most,
                "choices": list(field.choices) or None,
                "help": field.help,
            }
        )
    return shown


def _asset(name: str) -> str:
    return (files("voidpad.serve") / "assets" / name).read_text(encoding="utf-8").strip()
