"""MATH500: the last box, judged by math-verify, else by its words.

math-verify and sympy are imported where they are used: reading the items needs neither.
"""

import re
from pathlib import Path
from typing import Any, TypedDict

from voidpad.errors import DataError
from voidpad.evaluate.tasks import Doc, Splits, from_hub, read_lines, split_of
from voidpad.evaluate.tasks.graders import isolated

PROMPT = (
    "Work out the answer to the problem below, briefly and one step at a time. End with a line of exactly "
    "this form, with nothing in the box but the number or expression that was asked for:\n"
    "Therefore, the final answer is: $\\boxed{...}$. I hope it is correct\n\n"
)
OPENING = re.compile(r"^Therefore,\s*the\s*final\s*answer\s*is:?\s*", re.IGNORECASE)
TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
SECONDS = 5  # for math-verify to read a formula, and to compare two
# Spellings of a right answer that math-verify does not read.
STYLED = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
SPACE = r"(?:\\[,;:! ]|\{,\}|[ ~])"
THOUSANDS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{SPACE}\d{{3}})+(?![\d.]*\d|{SPACE}\d)")  # 58 500
REPEATING = re.compile(r"(\d{1,20})\.(\d{0,20})\\overline\s*\{(\d{1,20})\}")  # 0.1\overline{6}
ROOT = re.compile(r"√\s*(\d+|\w)")
UNIT = re.compile(
    r"(?<=[\d}.])\s*(dollars?|cents?|degrees?|inch(?:es)?|in|feet|foot|ft|yards?|miles?|mm|cm|km|m|met(?:er|re)s?"
    r"|seconds?|minutes?|hours?|days?|years?|units?|square\s+units?|pounds?|grams?|kg|g)\b(\^\{?\d\}?)?\.?\s*$"
)
SPACED = re.compile(r"\d\s+\d")  # 1 2, which math-verify would multiply
BASE = re.compile(r"_\{?\(?(?:\\text\{)?(\d+)\)?\}*\s*$")  # 4343_6
ARTICLE = re.compile(r"^(?:an?|the)\s+")


class Judgement(TypedDict):
    correct: bool
    by: str  # "math-verify", "string" or "none"
    parsed: bool  # math-verify could read both sides


def items(folder: Path | None = None) -> Splits:
    """The hub has the short answer; a local file may have the full solution, whose last box it is."""
    found = read_lines(folder, "math500.jsonl") if folder else from_hub("HuggingFaceH4/MATH-500")["test"]
    return {"test": split_of(map(_item, found))}


def _item(item: Doc) -> Doc:
    gold = item["answer"] if "solution" in item else boxed(item["answer"])
    if gold is None:
        raise DataError(f"math500: no box in the answer {item['answer'][-200:]!r}")
    return {"problem": item["problem"] if "problem" in item else item["question"], "gold": gold}


def prompt(doc: Doc) -> str:
    return f"{PROMPT}{doc['problem']}"


def boxed(text: str) -> str | None:
    """The content of the last box; an unbalanced last box is no box, and earlier ones are not tried."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 0
    for at in range(start + len(r"\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + len(r"\boxed{") : at].strip() or None
    return None


def voidpad_judgement(text: str, doc: Doc) -> Judgement:
    """Gold and box go to math-verify between dollars: bare, only 449 of 500 golds are equal to themselves.

    An interval may be written as an inequality, and a number may have a unit. Numbers in different bases are
    different. Where math-verify does not say equal, the words decide, with the spaces between them.
    """
    gold, box = doc["gold"], boxed(text)
    answer = respelled(box) if box else text
    bases = [BASE.search(side) for side in (gold, answer)]
    if bases[0] and bases[1] and bases[0][1] != bases[1][1]:
        return Judgement(correct=False, by="none", parsed=True)
    parsed = False
    without_unit = UNIT.sub(r"\\text{ \1}\2", answer) if box else answer
    for spelling in dict.fromkeys((answer, without_unit)):
        if not box or not SPACED.search(spelling):
            side = f"${spelling}$" if box else spelling
            same, parsed = _equal(f"${gold}$", side, allow_set_relation_comp=True)
            if same:
                return Judgement(correct=True, by="math-verify", parsed=parsed)
    same = words(gold) == words(answer)
    return Judgement(correct=same, by="string" if same else "none", parsed=parsed)


def authors_judgement(text: str, doc: Doc) -> Judgement:
    """As the paper's harness: no dollars, and a fallback to a string without any spaces."""
    gold = doc["gold"]
    same, parsed = _equal(gold, boxed(text) or text)
    if same:
        return Judgement(correct=True, by="math-verify", parsed=parsed)
    same = plain(gold) == plain(text)
    return Judgement(correct=same, by="string" if same else "none", parsed=parsed)


def _equal(gold: str, answer: str, **options: Any) -> tuple[bool, bool]:
    """Whether math-verify says that the two are equal, and whether it could read both.

    Its clock is a signal, which only the main thread of a process can set: the graders' processes have no other.
    """
    from math_verify import parse, verify
    from math_verify.errors import TimeoutException

    try:
        sides = [parse(side, parsing_timeout=SECONDS) for side in (gold, answer)]
        return verify(*sides, timeout_seconds=SECONDS, **options), all(sides)
    except (Exception, TimeoutException):  # whatever sympy stumbles over in a model's formula is not equal
        return False, False


def respelled(answer: str) -> str:
    """The content of a box as math-verify can read it: groups of three digits are one number, 0.1\\overline{6} is a
    fraction, and a root sign is a root."""
    answer = THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), answer)
    answer = REPEATING.sub(_fraction, answer)
    return ROOT.sub(r"\\sqrt{\1}", answer)


def _fraction(found: re.Match[str]) -> str:
    whole, fixed, repeated = found.groups()
    top = int(whole + fixed + repeated) - int(whole + fixed)
    bottom = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"\frac{{{top}}}{{{bottom}}}"


def words(text: str) -> str:
    """The string that we compare where math-verify does not say equal; spaces count between letters and digits."""
    text = OPENING.sub("", text.strip()).strip(" $\n\t")
    text = STYLED.sub(r"\1", text.replace(r"\left", "").replace(r"\right", ""))
    for mark in (r"\(", r"\)", r"\,", r"\!"):
        text = text.replace(mark, "")
    text = re.sub(r"\s+", " ", text).strip(" $").removesuffix(".").strip().lower()
    text = re.sub(r"\s?([^\w\s.])\s?", r"\1", ARTICLE.sub("", text))
    return text[1:-1] if re.fullmatch(r"\([a-z]\)", text) else text


def plain(text: str) -> str:
    """The string that the paper's harness compares where math-verify does not say equal."""
    text = OPENING.sub("", (boxed(text) or text).strip()).strip(" $.\n\t")
    text = text.replace(r"\left", "").replace(r"\right", "")
    text = TEXT.sub(r"\1", text)
    for mark in (r"\(", r"\)", r"\,", r"\!"):
        text = text.replace(mark, "")
    return re.sub(r"\s+", "", text).lower()


def score(doc: Doc, judgements: list[Judgement]) -> dict[str, float]:
    found = judgements[0]
    return {
        "accuracy": float(found["correct"]),
        "fallback": float(found["by"] == "string"),
        "unparsed": float(not found["parsed"]),
    }


def wrong(reason: str) -> Judgement:
    return Judgement(correct=False, by="none", parsed=False)


voidpad_filter = isolated(voidpad_judgement, wrong)
authors_filter = isolated(authors_judgement, wrong)
