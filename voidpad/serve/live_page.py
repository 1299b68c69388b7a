"""The page at `/`: a chat beside the replay page's canvas, drawn while the server decodes from canvas events."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from voidpad.builtin.tasks import TASKS, heldout
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.presets import schema
from voidpad.diagnose.page import PageExtension, page
from voidpad.diagnose.questions import has_builtin_vocab
from voidpad.diagnose.trace import End, Header, Pass, Recorder, record
from voidpad.engine.events import Wrote

if TYPE_CHECKING:
    from voidpad.serve.requests import ServedModel

# Fields that the form leaves out: what requests may not set, and switches that follow the code of a paper's authors.
HIDDEN = ("cut", "scores", "mute")


class CanvasStream:
    """The trace of one row while it is decoded: its lines, each with the text of the tokens that it names first."""

    def __init__(self, served: ServedModel, plan_name: str, seed: int, index: int) -> None:
        self.served, self.index = served, index
        self.recorder = Recorder(served.model, plan_name=plan_name, seed=seed, cache=served.options.cache)
        self.passes = 0
        self.named: set[int] = set()  # tokens whose text the client has

    def passed(self, event: Wrote, place: int) -> list[dict[str, Any]]:
        """The lines that a pass adds."""
        lines = []
        if not self.passes:
            header = self.recorder.header_of(event.plan, event.step.before, place)
            lines.append(self._line(header, {*header.prompt.ids, *header.template}))
        step = self.recorder.pass_of(event.plan, event.step, place, self.passes)
        self.passes += 1
        return [*lines, self._line(step, step.named())]

    def ended(self, outcome: Outcome, plan: Plan) -> list[dict[str, Any]]:
        """The last line."""
        if not self.passes:
            return []
        result = self.served.model.result(outcome, plan, cache=self.served.options.cache)
        pieces = {token: self.served.token_text(token) for token in sorted(self.named)}
        return [{"record": record(self.index, End(result, pieces))}]

    def _line(self, part: Header | Pass, tokens: set[int]) -> dict[str, Any]:
        fresh = sorted(tokens - self.named)
        self.named |= tokens
        pieces = {token: self.served.token_text(token) for token in fresh}
        return {"record": record(self.index, part), "pieces": pieces}


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
    """Prompts to click: problems of a built-in model that are one text each, everyday questions for any other."""
    if has_builtin_vocab(served.model):
        problems = [heldout(name, 1)[0] for name in TASKS]
        filled = next(problem for problem in heldout("tiny_fill", 8) if len(problem.gaps) == 1)
        return [problem.prompt for problem in (*problems, filled) if not problem.before]
    questions = [
        "Why is the sky blue? Answer in two sentences.",
        "Write a Python function that reverses a list.",
    ]
    template = "def area(radius):\n    return [[gap:8]]\n\nprint(area(2))"
    return questions if served.model.card.causal_block else [*questions, template]


def _plan_fields(served: ServedModel, name: str) -> dict[str, Any]:
    """The JSON schema of the fields of a preset that the form shows, with this server's defaults."""
    own = served.options.fields if name == served.plan_name else {}
    known = schema(name, served.model.decoding, calibration=served.model.card.calibration)
    return {
        field: {**about, "default": own.get(field, about["default"])}
        for field, about in known.items()
        if field not in HIDDEN
    }


def _asset(name: str) -> str:
    return (files("voidpad.serve") / "assets" / name).read_text(encoding="utf-8").strip()
