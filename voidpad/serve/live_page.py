"""The page at `/`: a chat beside the replay page's canvas, drawn while the server decodes from canvas events."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from torch import Tensor

from voidpad.builtin.tasks import TASKS, heldout
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.presets import schema
from voidpad.decode.rows import Rows
from voidpad.diagnose.page import PageExtension, page
from voidpad.diagnose.questions import has_builtin_vocab
from voidpad.diagnose.trace.format import End, end_record, header_record, pass_record
from voidpad.diagnose.trace.recorder import Recorder
from voidpad.engine.events import Wrote

if TYPE_CHECKING:
    from voidpad.serve.requests import ServedModel

HIDDEN = ("cut",)  # fields that requests may not set


class CanvasStream:
    """The trace of one row while it is decoded: its lines, each with the text of the tokens that it names first."""

    def __init__(self, served: ServedModel, plan_name: str, seed: int, index: int) -> None:
        self.served, self.index = served, index
        self.recorder = Recorder(served.model, plan_name=plan_name, seed=seed, cache=served.options.cache)
        self.passes = 0
        self.named: set[int] = set()  # tokens whose text the client has

    def observe(self, canvas: Rows) -> Tensor:
        return self.recorder.observe(canvas)

    def passed(self, event: Wrote, place: int) -> list[dict[str, Any]]:
        """The lines that a pass adds."""
        lines = []
        if not self.passes:
            header = self.recorder.header_of(event.plan, event.step.before, place)
            named = [*header.prompt.ids, *header.template]
            lines.append(self._line(header_record(self.index, header), named))
        step = self.recorder.pass_of(event.plan, event.step, place, self.passes)
        self.passes += 1
        named = [token for _, token, _ in step.commits]
        named += [edit.id for edit in step.edits if edit.id is not None]
        return [*lines, self._line(pass_record(self.index, step), named)]

    def ended(self, outcome: Outcome, plan: Plan) -> list[dict[str, Any]]:
        """The last line."""
        if not self.passes:
            return []
        result = self.served.model.result(outcome, plan, cache=self.served.options.cache)
        pieces = {token: self.served.token_text(token) for token in sorted(self.named)}
        return [{"record": end_record(self.index, End(result, pieces))}]

    def _line(self, record: dict[str, Any], tokens: Iterable[int]) -> dict[str, Any]:
        fresh = [token for token in dict.fromkeys(tokens) if token not in self.named]
        self.named.update(fresh)
        return {"record": record, "pieces": {token: self.served.token_text(token) for token in fresh}}


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
        default = (
            served.options.fields.get(field.name, field.default)
            if name == served.plan_name
            else field.default
        )
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
