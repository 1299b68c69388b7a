"""The paper's claim on the built-in models: same model, same data, same budget, only the padding differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from peft import PeftModel

from voidpad.builtin.outputs import Cell, Limits, decode
from voidpad.builtin.score import judge, summary
from voidpad.builtin.tasks import CANVAS, TASKS, heldout
from voidpad.models import load, merge
from voidpad.sandbox import Sandbox

Record = dict[str, Any]


def cells(blocks: Sequence[int]) -> list[Cell]:
    """Original, Rainbow and VOID at each block size; VOID with a canvas that finds its own length.

    All stop at EOS: that changes no answer, and saves the passes after it.
    """
    arms = [
        ("original", "tiny-instruct", "original"),
        ("rainbow", "tiny-rainbow", "original"),
        ("void", "tiny-void", "void"),
    ]
    fixed = [
        Cell(name, model, plan, {"block": block, "canvas": CANVAS, "stop": "eos"})
        for name, model, plan in arms
        for block in blocks
    ]
    return [*fixed, Cell("void, expanding", "tiny-void", "void-expansion")]


FULL = [
    Cell("eos control", "tiny-eos", "original", {"block": 32, "canvas": CANVAS}),
    Cell("eos control", "tiny-eos", "original", {"block": CANVAS, "canvas": CANVAS}),
    Cell("void, no ban", "tiny-void", "void", {"block": 32, "canvas": CANVAS, "ban": ""}),
    Cell("void, no ban", "tiny-void", "void", {"block": CANVAS, "canvas": CANVAS, "ban": ""}),
    Cell(
        "original, EOS banned",
        "tiny-instruct",
        "original",
        {"block": CANVAS, "canvas": CANVAS, "ban": "eos"},
        first=True,
    ),
    Cell(
        "original, EOS hidden",
        "tiny-instruct",
        "original",
        {"block": CANVAS, "canvas": CANVAS},
        hide_eos=True,
    ),
]


@dataclass(frozen=True)
class Arm:
    """One finished cell: what it wrote, whether it was right, and what that adds up to."""

    cell: Cell
    records: list[Record]
    right: list[bool]
    seconds: float

    @property
    def block(self) -> int:
        return int(self.records[0]["block"])

    @property
    def summary(self) -> Record:
        return summary(self.records, self.right)


def run(wanted: Sequence[Cell], count: int, sandbox: Sandbox, *, device: str = "cpu") -> Iterator[Arm]:
    """Decode and judge cell after cell; each model is loaded once, its adapter merged."""
    import time

    loaded: dict[str, Any] = {}
    for cell in wanted:
        if cell.model not in loaded:
            model = load(cell.model, device=device)
            loaded[cell.model] = merge(model) if isinstance(model.net, PeftModel) else model
        begun = time.perf_counter()
        records = list(decode(loaded[cell.model], [cell], count, limits=Limits(rows=16)))
        took = time.perf_counter() - begun
        records.sort(key=lambda r: (list(TASKS).index(r["task"]), r["index"]))
        yield Arm(cell, records, judge(records, sandbox), took)


def telling(arms: Sequence[Arm], count: int) -> dict[str, str] | None:
    """A problem that the original loses at block = canvas and VOID keeps: prompt and both answers."""
    by_name = {(arm.cell.name, arm.block): arm for arm in arms}
    lost, kept = by_name.get(("original", CANVAS)), by_name.get(("void", CANVAS))
    small = by_name.get(("original", 32))
    if lost is None or kept is None or small is None:
        return None
    for place, record in enumerate(kept.records):
        if kept.right[place] and small.right[place] and not lost.right[place]:
            problem = heldout(record["task"], count)[record["index"]]
            return {
                "prompt": problem.prompt,
                "original, block 32": small.records[place]["text"],
                f"original, block {CANVAS}": lost.records[place]["text"],
                f"void, block {CANVAS}": record["text"],
            }
    return None


def published() -> dict[str, Record]:
    """The figures of the full run in docs/tiny.md, by `name / block`."""
    source = files("voidpad.builtin") / "assets" / "results.json"
    return json.loads(source.read_text(encoding="utf-8")) if source.is_file() else {}
