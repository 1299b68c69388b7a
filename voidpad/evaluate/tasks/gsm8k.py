"""GSM8K: two ways to find the answer in a text, one way to compare it."""

import re
from pathlib import Path

from voidpad.evaluate.tasks.benchmark_files import Splits, from_hub, indexed, read_lines
from voidpad.evaluate.tasks.graders import Doc, each

INVALID = "[invalid]"
STRICT = re.compile(r"#### (-?[0-9.,]+)")
FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")  # the longer form is tried first at each place


def items(folder: Path | None = None) -> Splits:
    parts = ("train", "test")
    if folder is None:
        loaded = from_hub("openai/gsm8k", "main")
        return {part: indexed(loaded[part]) for part in parts}
    needs = ("question", "answer")
    return {part: indexed(read_lines(folder, f"gsm8k_{part}.jsonl", needs=needs)) for part in parts}


def prompt(doc: Doc) -> str:
    return f"Question: {doc['question']}\nAnswer:"


def strict_match(text: str) -> str:
    """The first number written the way the training answers write it."""
    found = STRICT.search(text)
    return found[1].strip() if found else INVALID


def flexible_extract(text: str) -> str:
    """The last thing that looks like a number; two or more of `.,$` look like one too."""
    found = FLEXIBLE.findall(text)
    return found[-1].strip() if found else INVALID


def bare(answer: str) -> str:
    """What is compared: no separators, no currency, nothing before the final marker, no full stop."""
    answer = answer.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return re.sub(r"\.$", "", answer).lower()


def score(doc: Doc, answers: list[str]) -> dict[str, float]:
    return {"exact_match": float(bare(answers[0]) == bare(doc["answer"]))}


strict_filter = each(lambda text, doc: strict_match(text), lambda reason: INVALID)
flexible_filter = each(lambda text, doc: flexible_extract(text), lambda reason: INVALID)
