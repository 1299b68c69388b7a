"""MATH500: the last box, judged by math-verify, else by a normalised string."""

import re
import threading
from dataclasses import dataclass

from math_verify import parse, verify
from math_verify.errors import TimeoutException

from voidpad.evaluate.tasks.boxes import boxed
from voidpad.evaluate.tasks.graders import Doc, isolated

PROMPT = (
    "Work out the answer to the problem below, briefly and one step at a time. End with a line of exactly "
    "this form, with nothing in the box but the number or expression that was asked for:\n"
    "Therefore, the final answer is: $\\boxed{...}$. I hope it is correct\n\n"
)
OPENING = re.compile(r"^Therefore,\s*the\s*final\s*answer\s*is:?\s*", re.IGNORECASE)
TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
SECONDS = 5


@dataclass(frozen=True)
class Judgement:
    correct: bool
    by: str  # "math-verify", "string" or "none"
    parsed: bool  # math-verify could read both sides


def prompt(doc: Doc) -> str:
    return f"{PROMPT}{doc['problem']}"


def plain(text: str) -> str:
    """The string that is compared where math-verify does not say equal."""
    text = OPENING.sub("", (boxed(text) or text).strip()).strip(" $.\n\t")
    text = text.replace(r"\left", "").replace(r"\right", "")
    text = TEXT.sub(r"\1", text)
    for mark in (r"\(", r"\)", r"\,", r"\!"):
        text = text.replace(mark, "")
    return re.sub(r"\s+", "", text).lower()


def voidpad_judgement(text: str, doc: Doc) -> Judgement:
    """Gold and box go to math-verify between dollars: bare, only 449 of 500 golds are equal to themselves."""
    gold, box = doc["gold"], boxed(text)
    return _judge(f"${gold}$", f"${box}$" if box else text, strings=(gold, text))


def authors_judgement(text: str, doc: Doc) -> Judgement:
    """The same without the dollars, as the paper's harness does."""
    return _judge(doc["gold"], boxed(text) or text, strings=(doc["gold"], text))


def _judge(gold: str, candidate: str, *, strings: tuple[str, str]) -> Judgement:
    # math-verify's clock is a signal, which only the main thread may set; elsewhere it runs without one.
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None
    try:
        sides = [parse(side, parsing_timeout=seconds) for side in (gold, candidate)]
        same, parsed = verify(*sides, timeout_seconds=seconds), all(sides)
    except (Exception, TimeoutException):  # whatever sympy stumbles over in a model's formula is not equal
        same, parsed = False, False
    if same:
        return Judgement(True, "math-verify", parsed)
    same = plain(strings[0]) == plain(strings[1])
    return Judgement(same, "string" if same else "none", parsed)


def score(doc: Doc, judgements: list[Judgement]) -> dict[str, float]:
    found = judgements[0]
    return {
        "accuracy": float(found.correct),
        "fallback": float(found.by == "string"),
        "unparsed": float(not found.parsed),
    }


def wrong(reason: str) -> Judgement:
    return Judgement(False, "none", False)


voidpad_filter = isolated(voidpad_judgement, wrong)
authors_filter = isolated(authors_judgement, wrong)
